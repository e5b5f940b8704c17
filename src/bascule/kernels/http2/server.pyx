# HTTP/2 for a server (RFC 9113), without IO. See server.pxd.

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcmp

from bascule.kernels.headers.hpack cimport HPACK_GOOD, HPACK_TOO_LARGE
from bascule.kernels.headers.request_head cimport RequestHead, TrailerCheck
from bascule.kernels.http2.connection cimport PREFACE, Http2Connection, ReceiveBuffer
from bascule.kernels.http2.frames cimport *
from bascule.kernels.http2.sender cimport ConnectionLimits, Http2Stream


cdef class Http2Server(Http2Connection):
    def __cinit__(self, ConnectionLimits limits not None, ReceiveBuffer receive_buffer=None, *args, **kwargs):
        self.preface_left = PREFACE_SIZE
        self.put_settings((
            (SETTING_MAX_CONCURRENT_STREAMS, limits.streams_max),
            (SETTING_INITIAL_WINDOW_SIZE, limits.stream_window_bytes),
            (SETTING_MAX_HEADER_LIST_SIZE, limits.header_list_bytes_max),
        ))

    cdef size_t consume_preface(self, const uint8_t* data, size_t size) except? 0:
        cdef size_t taken = min(size, <size_t> self.preface_left)
        if memcmp(data, PREFACE + PREFACE_SIZE - self.preface_left, taken) != 0:
            self.connection_error(PROTOCOL_ERROR, "this is no HTTP/2 client")
            return size
        self.preface_left -= <uint32_t> taken
        return taken

    cdef int header_block(self, uint32_t stream_id, bint ends, const uint8_t* block, size_t size) except -1:
        cdef Http2Stream stream = self.find(stream_id)
        cdef RequestHead head
        if stream is not None or stream_id <= self.last_stream_id:
            return self.trailers(stream, stream_id, ends, block, size)
        self.last_stream_id = stream_id
        head = self.read_head(block, size)
        if head is None:
            return self.connection_error(COMPRESSION_ERROR, "a header block cannot be decoded")             # §4.3
        if self.draining:
            return 0                                                                                        # §6.8: above GOAWAY's id
        if len(self.streams) >= self.limits.streams_max:
            # A client that has not seen our SETTINGS may open any number.
            if self.take(&self.resets if self.settings_acknowledged else &self.idle_frames, "too many streams"):
                return 0
            self.remember_reset(stream_id)
            return self.put_rst(stream_id, REFUSED_STREAM)                                                  # §5.1.2
        if (head.malformed and not head.too_large) or (ends and head.content_length > 0):
            if self.take(&self.resets, "too many malformed requests"):
                return 0
            self.remember_reset(stream_id)
            return self.put_rst(stream_id, PROTOCOL_ERROR)                                                  # §8.1.1
        return self.open_stream(stream_id, head, ends)

    cdef int trailers(self, Http2Stream stream, uint32_t stream_id, bint ends, const uint8_t* block, size_t size) except -1:
        cdef TrailerCheck check = TrailerCheck()
        cdef int result = self.decoder.decode_block(block, size, check)
        if result != HPACK_GOOD and result != HPACK_TOO_LARGE:
            return self.connection_error(COMPRESSION_ERROR, "a header block cannot be decoded")
        if stream is None:
            if self.draining or self.was_reset_by_us(stream_id):
                return 0
            return self.connection_error(STREAM_CLOSED, "HEADERS of a closed stream")                       # §5.1, §5.1.1
        if stream.half_closed:
            return self.reset_stream(stream, STREAM_CLOSED, "HEADERS behind the end of the stream")
        if not ends or check.malformed or result == HPACK_TOO_LARGE:
            return self.reset_stream(stream, PROTOCOL_ERROR, "malformed trailers")                         # §8.1
        return self.end_of_body(stream)

    cdef RequestHead read_head(self, const uint8_t* block, size_t size):
        cdef RequestHead head = RequestHead()
        cdef int result = self.decoder.decode_block(block, size, head)
        if result != HPACK_GOOD and result != HPACK_TOO_LARGE:
            return None
        head.too_large |= result == HPACK_TOO_LARGE
        head.close()
        return head

    cdef int open_stream(self, uint32_t stream_id, RequestHead head, bint ends) except -1:
        return self.put_rst(stream_id, REFUSED_STREAM)

    cdef int data_of_closed(self, uint32_t stream_id) except -1:
        if stream_id > self.last_stream_id or not stream_id & 1:
            return self.connection_error(PROTOCOL_ERROR, "DATA of a stream that was never opened")          # §5.1 idle
        if self.draining or self.was_reset_by_us(stream_id):
            return 0                                                                                        # §5.1 closed: in flight
        if self.take(&self.resets, "too many frames of closed streams"):
            return 0
        return self.put_rst(stream_id, STREAM_CLOSED)

    cdef int stream_was_reset(self, Http2Stream stream, uint32_t code) except -1:
        if self.take(&self.resets, "streams are opened and reset too fast"):
            return 0
        return self.close_stream(stream)

    cdef int reset_stream(self, Http2Stream stream, uint32_t code, str why) except -1:
        # Reset a stream for an error of the peer; too many of them end the connection.
        if self.take(&self.resets, "too many streams had to be reset"):
            return 0
        return Http2Connection.reset_stream(self, stream, code, why)

    cdef int end_stream(self, Http2Stream stream) except -1:
        # Trailers. RST_STREAM follows while the client still sends, else its half of the stream would stay open (§8.1).
        self.send_header_block(stream.id, stream.tail, True)
        if not stream.half_closed:
            self.remember_reset(stream.id)
            self.put_rst(stream.id, NO_ERROR)
        return self.close_stream(stream)
