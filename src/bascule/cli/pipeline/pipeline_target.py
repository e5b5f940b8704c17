"""Shared by the pipeline commands: their arguments, and the options with which Spark and Arrow connect to the brokers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bascule.cli.target.target import Target
from bascule.cli.terminal import values

if TYPE_CHECKING:
    from bascule.client.arrow.reader import FlightConnection

ArchivePath = Annotated[
    str,
    typer.Argument(
        help="The archive: a folder, or a path such as `s3://bucket/orders`.", show_default=False, metavar="ARCHIVE"
    ),
]
ArchiveOrFile = Annotated[
    str,
    typer.Argument(
        help="The path of an archive, or the file of a pipeline.", show_default=False, metavar="ARCHIVE|FILE"
    ),
]
StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        help="Option of the object store, such as `AWS_REGION=eu-central-1`, beside those of the environment; may be repeated.",
        show_default=False,
        metavar="KEY=VALUE",
    ),
]
Master = Annotated[
    str | None, typer.Option("--master", help="Where Spark runs. Default: on this machine.", show_default=False)
]

Pack = Annotated[
    Path | None,
    typer.Option(
        "--pack",
        help="The archive of `bascule spark pack`, for the executors of a cluster.",
        show_default=False,
        metavar="FILE",
        dir_okay=False,
    ),
]

Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting; may be repeated.", show_default=False),
]


def spark_conf(conf: list[str] | None) -> dict[str, str]:
    """The Spark settings of `--conf`."""
    settings = {}
    for text in conf or ():
        key, equals, value = text.partition("=")
        if not equals or not key.startswith("spark."):
            raise values.wrong("--conf", text, "a setting such as `spark.driver.memory=4g`")
        settings[key] = value
    return settings


def source_options(target: Target) -> dict[str, str]:
    """The source options with which Spark connects to the brokers of this command."""
    context = target.context
    token = target.client_options()["token"]
    given = {"tlsCa": context.tls_ca, "tlsCert": context.tls_cert, "tlsKey": context.tls_key, "token": token}
    found = {name: str(value) for name, value in given.items() if value is not None}
    return {**found, "tls": "true"} if target.speaks_tls else found


def tables(target: Target) -> FlightConnection:
    from bascule.client.arrow.reader import FlightConnection

    return FlightConnection(target.server, **target.client_options())
