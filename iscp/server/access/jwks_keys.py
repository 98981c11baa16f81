"""The public keys of a provider of OpenID Connect as it publishes them (JWKS, RFC 7517), and what they say of a token
(JWT), by PyJWT.

Which algorithms count is the node's to say, not the token's: a key is used with those of its own kind alone, and keys
that a token itself brings or names by a URL are not read.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.types import Options

from iscp.model.access.authorization import TOKEN_CHARS_MAX
from iscp.model.access.security_config import OidcConfig
from iscp.model.values.errors import NotAuthenticated, Unavailable
from iscp.ports.admin import UnknownKey
from iscp.system.http_exchange import HttpPeers, exchange, failure_words

# --- keys and tokens --------------------------------------------------------------------------------------------------

KEYS_MAX = 100
"""Keys of a provider; with more of them none is taken over."""

RSA_BITS_MIN, RSA_BITS_MAX = 2_048, 8_192
"""Bits of an RSA key; a shorter one can be broken, a longer one takes too long, and neither is used."""

_Public = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_BY_CURVE = {"secp256r1": ("ES256",), "secp384r1": ("ES384",), "secp521r1": ("ES512",)}
# Times are decided by the node's clock, in `iscp.model.access.security_config`.
_OPTIONS: Options = {
    "require": ["exp", "iat", "iss", "aud", "sub"],
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_jti": False,
}
_ANOTHER = "Get another one of the provider"


@dataclass(frozen=True, slots=True)
class _Key:
    key_id: str
    public: _Public
    algorithms: Collection[str]


class JwksKeys:
    """The port `VerifyingKeys`."""

    def __init__(self, keys: Sequence[_Key], config: OidcConfig) -> None:
        self._keys = keys
        self._config = config

    @property
    def key_ids(self) -> Collection[str]:
        return [key.key_id for key in self._keys]

    def verify(self, token: str) -> Mapping[str, object]:
        if len(token) > TOKEN_CHARS_MAX:
            raise _refused(f"has more than {TOKEN_CHARS_MAX} characters", "Have the provider put less into it")
        try:
            header = jwt.get_unverified_header(token)
            algorithm, key = self._key_of(header)
            return jwt.decode(
                token,
                key.public,
                algorithms=[algorithm],
                audience=self._config.audience,
                issuer=self._config.issuer,
                options=_OPTIONS,
            )
        except (jwt.PyJWTError, ValueError) as error:
            raise _translated(error) from error

    def _key_of(self, header: Mapping[str, object]) -> tuple[str, _Key]:
        """Raises NotAuthenticated, UnknownKey."""
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in self._config.algorithms:
            raise _refused(
                "is not signed by an algorithm that counts", "Have the provider use one of security.oidc.algorithms"
            )
        named = [key for key in self._keys if key.key_id == key_id] if key_id is not None else self._keys
        if not named:
            raise UnknownKey("is signed by a key that the provider does not have", field="token", remedy=_ANOTHER)
        if key_id is None and len(named) > 1:
            raise _refused("does not say by which key it is signed (`kid`)", "Have the provider name it")
        for key in named:
            if algorithm in key.algorithms:
                return algorithm, key
        raise _refused("is signed by an algorithm that is not its key's", _ANOTHER)


def read_jwks(text: bytes, config: OidcConfig) -> JwksKeys:
    """Return the keys that can be used among those that a provider publishes. Raises Unavailable where there are
    none.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unavailable("the provider's keys are not JSON", about="security.oidc.jwks_url") from error
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list) or len(listed) > KEYS_MAX:
        raise Unavailable(f"there is no list of at most {KEYS_MAX} keys", about="security.oidc.jwks_url")
    keys = [key for each in listed if isinstance(each, dict) for key in _usable(each, config.algorithms)]
    if not keys:
        raise Unavailable(
            f"has no key that can be used, of {len(listed)}",
            field="security.oidc.jwks_url",
            remedy="See security.oidc.algorithms",
        )
    return JwksKeys(keys, config)


def _usable(listed: Mapping[str, object], allowed: Collection[str]) -> Iterator[_Key]:
    """Yield no symmetric or private key, none for encryption, and none for algorithms that do not count."""
    operations = listed.get("key_ops", ["verify"])
    if listed.get("kty") == "oct" or "d" in listed or listed.get("use", "sig") != "sig":
        return
    if not isinstance(operations, list) or "verify" not in operations:
        return
    try:
        public = jwt.PyJWK({**listed, "alg": ""}).key
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError):  # whatever else a key may be
        return
    algorithms = [each for each in _fitting(public) if each in allowed and listed.get("alg", each) == each]
    key_id = listed.get("kid", "")
    if algorithms and isinstance(key_id, str):
        yield _Key(key_id, public, algorithms)


def _fitting(public: object) -> Collection[str]:
    match public:
        case RSAPublicKey() if RSA_BITS_MIN <= public.key_size <= RSA_BITS_MAX:
            return _RSA
        case EllipticCurvePublicKey():
            return _BY_CURVE.get(public.curve.name, ())
        case Ed25519PublicKey():
            return ("EdDSA",)
        case _:
            return ()


def _translated(error: Exception) -> NotAuthenticated:
    match error:
        case jwt.MissingRequiredClaimError():
            return _refused(f"does not have the claim `{error.claim}`", "Have the provider add it")
        case jwt.InvalidIssuerError():
            return _refused("is of another issuer", "Get one of the issuer that the nodes know (security.oidc.issuer)")
        case jwt.InvalidAudienceError():
            return _refused("is for another audience", "Get one for that which the nodes are (security.oidc.audience)")
        case jwt.InvalidSignatureError():
            return _refused("has a signature that the provider has not made", _ANOTHER)
        case _:
            return _refused("cannot be read", _ANOTHER)


def _refused(message: str, remedy: str) -> NotAuthenticated:
    return NotAuthenticated(message, field="token", remedy=remedy)


# --- the fetch of a provider's keys -----------------------------------------------------------------------------------

FETCH_TIMEOUT_S = 5.0
"""How long a fetch of a provider's keys may take, connecting and the whole answer included; then it has failed."""

JWKS_BYTES_MAX = 256 * 1024
"""Bytes of the answer with a provider's keys, headers included; a longer one is not read to its end, and has failed."""


class HttpJwks:
    """The port `KeySource` on a URL that `oidc_faults` has nothing against: a fetch within a bounded time and size.

    Redirects are not followed.
    """

    def __init__(self, config: OidcConfig, timeout_s: float = FETCH_TIMEOUT_S) -> None:
        self._config = config
        self._host = urlsplit(config.jwks_url).hostname or ""
        self._timeout_s = timeout_s

    def fetch(self) -> JwksKeys:
        try:
            answer = exchange(
                "GET",
                self._config.jwks_url,
                None,
                {"accept": "application/json"},
                timeout_s=self._timeout_s,
                bytes_max=JWKS_BYTES_MAX,
                peers=HttpPeers(ca_file=self._config.ca_file),
            )
        except OSError as error:
            late = isinstance(error, TimeoutError)
            why = f"{self._host} did not answer in time" if late else failure_words(error)
            raise Unavailable(
                f"the provider's keys cannot be fetched: {why}", about="security.oidc.jwks_url"
            ) from error
        if answer.status != HTTPStatus.OK:
            raise Unavailable(f"{self._host} answers {answer.status} instead of keys", about="security.oidc.jwks_url")
        return read_jwks(answer.body, self._config)
