"""grpc.reflection.v1 and v1alpha: tools such as grpcurl learn from the server what it offers. Both versions have the same messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from bascule.kernels.grpc.server import CallStream
from bascule.net.grpc.descriptors import add_file, field, message, message_class, method, service
from bascule.net.grpc.health import HEALTH_FILE
from bascule.net.grpc.server import Route
from bascule.net.grpc.status import Status

VERSIONS: Final = ("v1", "v1alpha")


def _reflection_file(version: str) -> FileDescriptorProto:
    package = f"grpc.reflection.{version}"
    return FileDescriptorProto(
        name=f"grpc/reflection/{version}/reflection.proto",
        package=package,
        syntax="proto3",
        message_type=[
            message(
                "ServerReflectionRequest",
                field("host", 1, "string"),
                field("file_by_filename", 3, "string", one_of=True),
                field("file_containing_symbol", 4, "string", one_of=True),
                field("file_containing_extension", 5, f".{package}.ExtensionRequest", one_of=True),
                field("all_extension_numbers_of_type", 6, "string", one_of=True),
                field("list_services", 7, "string", one_of=True),
                oneof="message_request",
            ),
            message("ExtensionRequest", field("containing_type", 1, "string"), field("extension_number", 2, "int32")),
            message(
                "ServerReflectionResponse",
                field("valid_host", 1, "string"),
                field("original_request", 2, f".{package}.ServerReflectionRequest"),
                field("file_descriptor_response", 4, f".{package}.FileDescriptorResponse", one_of=True),
                field("all_extension_numbers_response", 5, f".{package}.ExtensionNumberResponse", one_of=True),
                field("list_services_response", 6, f".{package}.ListServiceResponse", one_of=True),
                field("error_response", 7, f".{package}.ErrorResponse", one_of=True),
                oneof="message_response",
            ),
            message("FileDescriptorResponse", field("file_descriptor_proto", 1, "bytes", repeated=True)),
            message(
                "ExtensionNumberResponse",
                field("base_type_name", 1, "string"),
                field("extension_number", 2, "int32", repeated=True),
            ),
            message("ListServiceResponse", field("service", 1, f".{package}.ServiceResponse", repeated=True)),
            message("ServiceResponse", field("name", 1, "string")),
            message("ErrorResponse", field("error_code", 1, "int32"), field("error_message", 2, "string")),
        ],
        service=[
            service(
                "ServerReflection",
                method(
                    "ServerReflectionInfo",
                    f".{package}.ServerReflectionRequest",
                    f".{package}.ServerReflectionResponse",
                    client_streaming=True,
                    server_streaming=True,
                ),
            )
        ],
    )


REFLECTION_FILES: Final = {version: _reflection_file(version) for version in VERSIONS}

_pool = DescriptorPool()
for _file in REFLECTION_FILES.values():
    add_file(_pool, _file)


class Catalogue:
    """Everything the server offers: services, and the files that declare names."""

    def __init__(self, files: Iterable[FileDescriptorProto]) -> None:
        self.files = {file.name: file for file in files}
        self.services = sorted(_join(file.package, one.name) for file in self.files.values() for one in file.service)
        self._symbols: dict[str, str] = {}
        for file in self.files.values():
            for symbol in _symbols(file):
                self._symbols[symbol] = file.name

    def file_of(self, symbol: str) -> str | None:
        return self._symbols.get(symbol.removeprefix("."))

    def with_imports(self, name: str) -> list[bytes] | None:
        """The file, then those it imports; None for a file that nobody here knows."""
        if name not in self.files:
            return None
        wanted, found = [name], dict[str, bytes]()
        while wanted:
            file = self.files.get(wanted.pop(0))
            if file is not None and file.name not in found:
                found[file.name] = file.SerializeToString()
                wanted += file.dependency
        return list(found.values())


def _join(*names: str) -> str:
    return ".".join(name for name in names if name)


def _symbols(file: FileDescriptorProto) -> Iterable[str]:
    for declared in file.service:
        yield _join(file.package, declared.name)
        for one in declared.method:
            yield _join(file.package, declared.name, one.name)
    for enumeration in file.enum_type:
        yield _join(file.package, enumeration.name)
    waiting = [(file.package, kind) for kind in file.message_type]
    while waiting:
        scope, kind = waiting.pop()
        name = _join(scope, kind.name)
        yield name
        inner = (
            [one.name for one in kind.field]
            + [one.name for one in kind.oneof_decl]
            + [one.name for one in kind.enum_type]
        )
        yield from (_join(name, one) for one in inner)
        waiting += [(name, nested) for nested in kind.nested_type]


class _Reflection(CallStream):
    """A conversation: one answer for each question."""

    def __init__(self, catalogue: Catalogue, request: Any, response: Any) -> None:
        self._catalogue = catalogue
        self._request = request
        self._response = response
        self.lasting = True

    def received(self, message: bytes) -> None:
        try:
            request = self._request.FromString(message)
        except DecodeError:
            self.finish(Status.INTERNAL, "the request is not valid protobuf")
            return
        answer = self._response(valid_host=request.host, original_request=request)
        self._fill(answer, request)
        self.send(answer.SerializeToString())

    def client_finished(self) -> None:
        self.finish(Status.OK)

    def _fill(self, answer: Any, request: Any) -> None:
        question = request.WhichOneof("message_request")
        catalogue = self._catalogue
        if question == "list_services":
            for name in catalogue.services:
                answer.list_services_response.service.add(name=name)
        elif question == "file_by_filename":
            self._fill_files(answer, request.file_by_filename)
        elif question == "file_containing_symbol":
            self._fill_files(answer, catalogue.file_of(request.file_containing_symbol))
        elif question == "all_extension_numbers_of_type" and catalogue.file_of(request.all_extension_numbers_of_type):
            # None of our messages has extensions.
            answer.all_extension_numbers_response.base_type_name = request.all_extension_numbers_of_type
        elif question is None:
            _refuse(answer, Status.INVALID_ARGUMENT, "nothing was asked")
        else:
            _refuse(answer, Status.NOT_FOUND, "not found")

    def _fill_files(self, answer: Any, name: str | None) -> None:
        files = None if name is None else self._catalogue.with_imports(name)
        if files is None:
            _refuse(answer, Status.NOT_FOUND, "not found")
        else:
            answer.file_descriptor_response.file_descriptor_proto.extend(files)


def _refuse(answer: Any, status: Status, text: str) -> None:
    answer.error_response.error_code = status
    answer.error_response.error_message = text


def reflection_routes(files: Iterable[FileDescriptor]) -> dict[bytes, Route]:
    """Routes that tell what is declared in these files and what they import, in health and in reflection itself."""
    catalogue = Catalogue([*_with_imports(files), HEALTH_FILE, *REFLECTION_FILES.values()])
    return {
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo".encode(): _route(catalogue, version)
        for version in VERSIONS
    }


def _route(catalogue: Catalogue, version: str) -> Route:
    request = message_class(_pool, f"grpc.reflection.{version}.ServerReflectionRequest")
    response = message_class(_pool, f"grpc.reflection.{version}.ServerReflectionResponse")
    return lambda: _Reflection(catalogue, request, response)


def _with_imports(files: Iterable[FileDescriptor]) -> list[FileDescriptorProto]:
    waiting, found = list(files), dict[str, FileDescriptorProto]()
    while waiting:
        file = waiting.pop(0)
        if file.name not in found:
            found[file.name] = FileDescriptorProto()
            file.CopyToProto(found[file.name])
            waiting += file.dependencies
    return list(found.values())
