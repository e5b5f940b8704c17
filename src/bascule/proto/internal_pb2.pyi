from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RaftJoinRequest(_message.Message):
    __slots__ = ("node_id",)
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    def __init__(self, node_id: _Optional[str] = ...) -> None: ...

class RaftJoinResponse(_message.Message):
    __slots__ = ("error", "cluster_id")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    error: str
    cluster_id: str
    def __init__(self, error: _Optional[str] = ..., cluster_id: _Optional[str] = ...) -> None: ...

class ReportLeaderOp(_message.Message):
    __slots__ = ("stream", "partition", "replica", "leader", "leader_epoch")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    replica: str
    leader: str
    leader_epoch: int
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., replica: _Optional[str] = ..., leader: _Optional[str] = ..., leader_epoch: _Optional[int] = ...) -> None: ...

class ReportConsumerGroupCoordinatorOp(_message.Message):
    __slots__ = ("group_id", "consumer_id", "coordinator", "epoch")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    consumer_id: str
    coordinator: str
    epoch: int
    def __init__(self, group_id: _Optional[str] = ..., consumer_id: _Optional[str] = ..., coordinator: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class PropagatedRequest(_message.Message):
    __slots__ = ("report_leader_op", "report_consumer_group_coordinator_op", "op")
    REPORT_LEADER_OP_FIELD_NUMBER: _ClassVar[int]
    REPORT_CONSUMER_GROUP_COORDINATOR_OP_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    report_leader_op: ReportLeaderOp
    report_consumer_group_coordinator_op: ReportConsumerGroupCoordinatorOp
    op: bytes
    def __init__(self, report_leader_op: _Optional[_Union[ReportLeaderOp, _Mapping]] = ..., report_consumer_group_coordinator_op: _Optional[_Union[ReportConsumerGroupCoordinatorOp, _Mapping]] = ..., op: _Optional[bytes] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "msg")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MSG_FIELD_NUMBER: _ClassVar[int]
    code: int
    msg: str
    def __init__(self, code: _Optional[int] = ..., msg: _Optional[str] = ...) -> None: ...

class PropagatedResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: Error
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class ServerInfoRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class ServerInfoResponse(_message.Message):
    __slots__ = ("id", "host", "port", "rack", "flight_port")
    ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    FLIGHT_PORT_FIELD_NUMBER: _ClassVar[int]
    id: str
    host: str
    port: int
    rack: str
    flight_port: int
    def __init__(self, id: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., rack: _Optional[str] = ..., flight_port: _Optional[int] = ...) -> None: ...

class PartitionStatusRequest(_message.Message):
    __slots__ = ("stream", "partition")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ...) -> None: ...

class PartitionStatusResponse(_message.Message):
    __slots__ = ("exists", "is_leader", "has_failed", "stream_id")
    EXISTS_FIELD_NUMBER: _ClassVar[int]
    IS_LEADER_FIELD_NUMBER: _ClassVar[int]
    HAS_FAILED_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    exists: bool
    is_leader: bool
    has_failed: bool
    stream_id: int
    def __init__(self, exists: _Optional[bool] = ..., is_leader: _Optional[bool] = ..., has_failed: _Optional[bool] = ..., stream_id: _Optional[int] = ...) -> None: ...

class Cursor(_message.Message):
    __slots__ = ("stream", "partition", "cursor_id", "offset", "stream_id")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    CURSOR_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    cursor_id: str
    offset: int
    stream_id: int
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., cursor_id: _Optional[str] = ..., offset: _Optional[int] = ..., stream_id: _Optional[int] = ...) -> None: ...

class FetchCursorRequest(_message.Message):
    __slots__ = ("cursors_partition", "key", "replacement")
    CURSORS_PARTITION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    REPLACEMENT_FIELD_NUMBER: _ClassVar[int]
    cursors_partition: int
    key: bytes
    replacement: CursorReplacement
    def __init__(self, cursors_partition: _Optional[int] = ..., key: _Optional[bytes] = ..., replacement: _Optional[_Union[CursorReplacement, _Mapping]] = ...) -> None: ...

class CursorReplacement(_message.Message):
    __slots__ = ("cursor", "expected")
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    cursor: Cursor
    expected: int
    def __init__(self, cursor: _Optional[_Union[Cursor, _Mapping]] = ..., expected: _Optional[int] = ...) -> None: ...

class FetchCursorResponse(_message.Message):
    __slots__ = ("error", "offset", "stream_id")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    error: Error
    offset: int
    stream_id: int
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ..., offset: _Optional[int] = ..., stream_id: _Optional[int] = ...) -> None: ...

class SuccessionRequest(_message.Message):
    __slots__ = ("step", "stream", "stream_id", "partition", "leader_epoch", "new_leader_epoch", "key", "hash_bytes", "early", "part", "parts", "data")
    class Step(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        LISTEN: _ClassVar[SuccessionRequest.Step]
        TAKE: _ClassVar[SuccessionRequest.Step]
        CANCEL: _ClassVar[SuccessionRequest.Step]
    LISTEN: SuccessionRequest.Step
    TAKE: SuccessionRequest.Step
    CANCEL: SuccessionRequest.Step
    STEP_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEW_LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HASH_BYTES_FIELD_NUMBER: _ClassVar[int]
    EARLY_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    step: SuccessionRequest.Step
    stream: str
    stream_id: int
    partition: int
    leader_epoch: int
    new_leader_epoch: int
    key: bytes
    hash_bytes: int
    early: int
    part: int
    parts: int
    data: bytes
    def __init__(self, step: _Optional[_Union[SuccessionRequest.Step, str]] = ..., stream: _Optional[str] = ..., stream_id: _Optional[int] = ..., partition: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., new_leader_epoch: _Optional[int] = ..., key: _Optional[bytes] = ..., hash_bytes: _Optional[int] = ..., early: _Optional[int] = ..., part: _Optional[int] = ..., parts: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class SuccessionResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: Error
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...
