"""Makes and revokes tokens in etcd; any node may."""

from __future__ import annotations

from iscp.adapters.etcd.client import EtcdClient
from iscp.adapters.etcd.keys import Keys
from iscp.adapters.etcd.tokens.token_keys import TokenKeys, value_of
from iscp.adapters.etcd.values import Compare, Delete, Put
from iscp.core.access_token import TOKENS_MAX, TokenRecord
from iscp.core.errors import InvalidRequest

_CHANGED = b"1"


class EtcdTokens:
    """The port `TokenStore` on etcd. `tokens_max`: how many there may be."""

    def __init__(self, client: EtcdClient, keys: Keys, tokens_max: int = TOKENS_MAX) -> None:
        self._client = client
        self._keys = TokenKeys(keys.access)
        self._tokens_max = tokens_max

    def create(self, record: TokenRecord) -> bool:
        if len(self._client.list_prefix(self._keys.tokens).items) >= self._tokens_max:
            raise InvalidRequest(
                f"there are {self._tokens_max} tokens, as many as there may be",
                field="token",
                remedy="Revoke those that have ended; see `iscp-admin token list`",
            )
        key = self._keys.token(record.token_id)
        writes = Put(key, value_of(record)), Put(self._keys.head, _CHANGED)
        return self._client.txn((Compare.absent(key),), writes).succeeded

    def revoke(self, token_id: str, account: str) -> bool:
        key = self._keys.token(token_id)
        found = self._client.get(key)
        record = self._keys.read(found) if found else None
        # One that cannot be read has no account: only who acts for all can delete it.
        if found is None or (account and (record is None or record.account != account)):
            return False
        there = Compare.created_at(key, found.create_revision)
        return self._client.txn((there,), (Delete(key), Put(self._keys.head, _CHANGED))).succeeded

    def records(self) -> list[TokenRecord]:
        found = map(self._keys.read, self._client.list_prefix(self._keys.tokens).items)
        return [record for record in found if record is not None]
