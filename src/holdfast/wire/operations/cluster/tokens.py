"""The operations on tokens."""

from holdfast.core.records import TokenRecord
from holdfast.wire.api import ServerView, SignInLink, SignInView, TokenCreated, TokenRequest
from holdfast.wire.operations.operation import Operation, PageOf, Role, reads

LIST_TOKENS = Operation(
    "GET", "/v1/tokens", Role.ADMIN, "Every token, without its secret.",
    answers={200: PageOf(TokenRecord)}
)  # fmt: skip
CREATE_TOKEN = Operation(
    "POST", "/v1/tokens", Role.ADMIN, "A new token; its secret is shown this once.",
    body=TokenRequest, answers={201: TokenCreated}, repeatable=False
)  # fmt: skip
REVOKE_TOKEN = Operation(
    "DELETE", "/v1/tokens/{id}", Role.ADMIN, "Revoke a token.", answers={204: None},
    repeatable=False
)  # fmt: skip
LIST_SIGN_INS = reads(
    "/v1/sign-ins", "Browsers that are signed in: one's own; for an admin all.", PageOf(SignInView)
)  # fmt: skip
CREATE_LINK = Operation(
    "POST", "/v1/sign-ins/links", Role.READ, "A link that signs one browser in, once.",
    answers={201: SignInLink}, repeatable=False
)  # fmt: skip
END_SIGN_IN = Operation(
    "DELETE", "/v1/sign-ins/{id}", Role.READ, "End a browser's sign-in.", answers={204: None},
    repeatable=False
)  # fmt: skip
WHO_AM_I = reads("/v1/whoami", "The caller's token.", TokenRecord)
GET_SERVER = reads("/v1/server", "The controller's version and clock.", ServerView)
