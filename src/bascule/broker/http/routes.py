"""The paths of the HTTP port."""

from __future__ import annotations

from collections.abc import Mapping

from bascule.broker.metrics.exposition import CONTENT_TYPE
from bascule.broker.metrics.readiness import why_not_ready
from bascule.broker.metrics.scrape import Scrape
from bascule.net.gate import Gate
from bascule.net.grpc.server import Peer
from bascule.net.http.server import Answer, Request, Response
from bascule.security.identities import Identities


def routes(gate: Gate[Scrape], identities: Identities) -> Mapping[str, Answer]:
    async def healthz(_request: Request, _peer: Peer) -> Response:
        """Liveness probe: the process runs and its event loop answers."""
        return Response.text(200, "ok")

    async def readyz(_request: Request, _peer: Peer) -> Response:
        reason = gate.why_closed
        reasons = why_not_ready(gate.parts().sources) if reason is None else [reason]
        return Response.text(503, "\n".join(reasons)) if reasons else Response.text(200, "ready")

    async def metrics(request: Request, peer: Peer) -> Response:
        scrape = gate.parts()
        peer = await identities.of_request(peer, request.authorization)
        scrape.sources.authorizer.require(peer, "*", "FetchMetadata")
        return Response(200, await scrape.page(), CONTENT_TYPE)

    return {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics}


def dispatch(paths: Mapping[str, Answer]) -> Answer:
    async def answer(request: Request, peer: Peer) -> Response:
        found = paths.get(request.path)
        if found is None:
            return Response.text(404, f"there is no such path; this port has {', '.join(sorted(paths))}")
        return await found(request, peer)

    return answer
