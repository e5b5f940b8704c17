"""grpc.reflection.v1 and v1alpha: a tool such as grpcurl learns from the server which services it offers, with which messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from google.protobuf import text_format
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from bascule import limits
from bascule.kernels.grpc.server import CallStream
from bascule.net.grpc.server import Route
from bascule.net.grpc.status import Status
from bascule.proto import health_pb2, reflection_pb2
from bascule.proto.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

VERSIONS: Final = ("v1", "v1alpha")


class Catalogue:
    """The services that the server offers, and the files that declare them."""

    def __init__(self, files: Iterable[FileDescriptor]) -> None:
        self._pool = DescriptorPool()
        self._added: set[str] = set()
        self.services: list[str] = []
        for file in files:
            self._add(file)
        self.services.sort()

    def _add(self, file: FileDescriptor) -> None:
        """Add a file after the files that it imports."""
        if file.name in self._added:
            return
        self._added.add(file.name)
        for imported in file.dependencies:
            self._add(imported)
        self._pool.AddSerializedFile(file.serialized_pb)
        self.services += [service.full_name for service in file.services_by_name.values()]

    def file(self, name: str) -> FileDescriptor:
        """Return a file by its name. Raises KeyError."""
        return self._pool.FindFileByName(name)

    def file_of(self, symbol: str) -> FileDescriptor:
        """Return the file that declares a symbol. Raises KeyError."""
        symbol = symbol.removeprefix(".")
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:  # it does not look for methods
            service, _, method = symbol.rpartition(".")
            return self._pool.FindServiceByName(service).methods_by_name[method].containing_service.file


def _v1alpha() -> FileDescriptor:
    """Return the reflection service's older version: the same messages in another package."""
    declared = FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(declared)
    declared.name = "reflection_v1alpha.proto"
    text = text_format.MessageToString(declared).replace("grpc.reflection.v1", "grpc.reflection.v1alpha")
    pool = DescriptorPool()
    pool.Add(text_format.Parse(text, FileDescriptorProto()))
    return pool.FindFileByName(declared.name)


def _with_imports(file: FileDescriptor) -> list[bytes]:
    """Return a file and the files that it imports, serialized."""
    waiting, found = [file], dict[str, bytes]()
    while waiting:
        one = waiting.pop(0)
        if one.name not in found:
            found[one.name] = one.serialized_pb
            waiting += one.dependencies
    return list(found.values())


class _Reflection(CallStream):
    """One call: a response for each request."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._waiting: deque[bytes] = deque()
        """Requests whose responses the client has no window for yet."""
        self._is_client_done = False
        self.lasting = True

    def received(self, message: bytes) -> None:
        if len(self._waiting) >= limits.GRPC_REFLECTIONS_WAITING_MAX:
            text = f"{len(self._waiting)} requests wait for responses to be read; read them before the next request"
            self.finish(Status.RESOURCE_EXHAUSTED, text)
            return
        self._waiting.append(message)
        self.writable()

    def client_finished(self) -> None:
        self._is_client_done = True
        self.writable()

    def writable(self) -> None:
        while self._waiting and self.room_bytes and not self.finished:
            self._answer(self._waiting.popleft())
        if self._is_client_done and not self._waiting:
            self.finish(Status.OK)

    def ended(self) -> None:
        self._waiting.clear()

    def _answer(self, message: bytes) -> None:
        try:
            request = ServerReflectionRequest.FromString(message)
        except DecodeError:
            self.finish(Status.INTERNAL, "the request is not valid protobuf")
            return
        response = ServerReflectionResponse(valid_host=request.host, original_request=request)
        try:
            self._fill(response, request)
        except KeyError:
            response.error_response.error_code = Status.NOT_FOUND
            response.error_response.error_message = "not found"
        self.send(response.SerializeToString())

    def _fill(self, response: ServerReflectionResponse, request: ServerReflectionRequest) -> None:
        """Raises KeyError for a name that the catalogue does not have."""
        question = request.WhichOneof("message_request")
        catalogue = self._catalogue
        if question == "list_services":
            for name in catalogue.services:
                response.list_services_response.service.add(name=name)
        elif question == "file_by_filename":
            _fill_files(response, catalogue.file(request.file_by_filename))
        elif question == "file_containing_symbol":
            _fill_files(response, catalogue.file_of(request.file_containing_symbol))
        elif question == "all_extension_numbers_of_type":
            catalogue.file_of(request.all_extension_numbers_of_type)
            # No message here has extensions: the list of numbers stays empty.
            response.all_extension_numbers_response.base_type_name = request.all_extension_numbers_of_type
        elif question == "file_containing_extension":
            raise KeyError(question)
        else:
            response.error_response.error_code = Status.INVALID_ARGUMENT
            response.error_response.error_message = "the request has no question; set one field of `message_request`"


def _fill_files(response: ServerReflectionResponse, file: FileDescriptor) -> None:
    response.file_descriptor_response.file_descriptor_proto.extend(_with_imports(file))


def reflection_routes(files: Iterable[FileDescriptor]) -> dict[bytes, Route]:
    """Return the routes of both versions, for these files, the files that they import, health and reflection itself."""
    catalogue = Catalogue([*files, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR, _v1alpha()])
    return {
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo".encode(): lambda: _Reflection(catalogue)
        for version in VERSIONS
    }
