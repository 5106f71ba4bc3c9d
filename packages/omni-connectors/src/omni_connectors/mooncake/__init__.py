"""The connector over a Mooncake store, for stages on several hosts.

    sender    put  --> writes the payload into the memory that it lends to the store, under a key that is used once
    receiver  get  --> asks the store where the key's bytes are, reads them over TCP or RDMA and removes the key

The store is a service of its own (`mooncake_master`); it knows keys and places, the bytes stay in the senders' memory.
"""

from omni_connectors.mooncake.connector import MooncakeStoreConnector

__all__ = ["MooncakeStoreConnector"]
