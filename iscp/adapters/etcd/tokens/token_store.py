"""Makes and revokes tokens in etcd; any node may."""

from __future__ import annotations

from iscp.adapters.etcd.client import EtcdClient
from iscp.adapters.etcd.keys import Keys
from iscp.adapters.etcd.tokens.token_keys import TokenKeys, value_of
from iscp.adapters.etcd.values import Compare, Delete, Put
from iscp.core.access.access_token import TOKENS_MAX, TOKENS_PER_ACCOUNT_MAX, TOKENS_SPARE, TokenRecord, ended_before
from iscp.core.values.errors import InvalidRequest

_CHANGED = b"1"


class EtcdTokens:
    """The port `TokenStore` on etcd. `cluster_account`: the one for which `account_max` does not hold."""

    def __init__(
        self,
        client: EtcdClient,
        keys: Keys,
        cluster_account: str = "",
        tokens_max: int = TOKENS_MAX,
        account_max: int = TOKENS_PER_ACCOUNT_MAX,
    ) -> None:
        self._client = client
        self._keys = TokenKeys(keys.access)
        self._cluster_account = cluster_account
        self._tokens_max = tokens_max
        self._account_max = account_max

    def create(self, record: TokenRecord) -> bool:
        items = self._client.list_prefix(self._keys.tokens).items
        there = [each for each in map(self._keys.read_token, items) if each is not None]
        ended = ended_before(there, record)
        own = sum(each.account == record.account for each in there)
        own_ended = sum(each.account == record.account for each in ended)
        self._check_room(record.account, len(items) - len(ended), own - own_ended)
        key = self._keys.token(record.token_id)
        deleted = [Delete(self._keys.token(each.token_id)) for each in ended if each.token_id != record.token_id]
        writes: tuple[Put | Delete, ...] = (Put(key, value_of(record)), Put(self._keys.head, _CHANGED), *deleted)
        return self._client.txn((Compare.absent(key),), writes).succeeded

    def _check_room(self, account: str, count: int, own: int) -> None:
        """`count`: the tokens there are; `own`: those of the account."""
        wide = account == self._cluster_account
        if own >= self._account_max and not wide:
            raise InvalidRequest(
                f"the account has {own} tokens, and may have {self._account_max}",
                about="token",
                remedy="Revoke those that nobody needs; see `iscp-admin token list`",
            )
        if count >= self._tokens_max + (TOKENS_SPARE if wide else 0):
            raise InvalidRequest(
                "there are as many tokens as there may be",
                about="token",
                remedy="Revoke those that nobody needs; somebody of the cluster-wide account sees all",
            )

    def revoke(self, token_id: str, account: str) -> bool:
        key = self._keys.token(token_id)
        found = self._client.get(key)
        record = self._keys.read_token(found) if found else None
        # One that cannot be read has no account: only who acts for all can delete it.
        if found is None or (account and (record is None or record.account != account)):
            return False
        there = Compare.created_at(key, found.create_revision)
        return self._client.txn((there,), (Delete(key), Put(self._keys.head, _CHANGED))).succeeded

    def records(self) -> list[TokenRecord]:
        found = map(self._keys.read_token, self._client.list_prefix(self._keys.tokens).items)
        return [record for record in found if record is not None]
