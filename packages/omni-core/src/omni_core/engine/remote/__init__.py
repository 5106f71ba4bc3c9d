"""Stages on several hosts: the head, which the workers of remote stages register with, and the workers.

Registration is a handshake over ZeroMQ (`head`, `join`), two questions and two answers in msgpack (`messages`). What follows,
a stage's messages, goes over one TCP connection for each replica, framed as on the local sockets (`channel`). It does not go
through ZeroMQ: a ROUTER drops what a lost peer has not read and a DEALER connects again in silence, so both ends would have to
count messages to notice a gap. A TCP connection either delivers everything in order or ends, and its end is what the engine
takes for a stage's death everywhere else. Payloads pass neither; connectors carry them from stage to stage.
"""
