"""Large values of calls, by the SHA-256 of their bytes."""

import os
from pathlib import Path

from holdfast.client.calls import path_of, query_of
from holdfast.client.scripts import FetchFile, Script, SendFile, runs


class BlobMethods:
    """The client's methods about large values. Their bytes are streamed."""

    @runs
    def put_blob(self, sha256: str, path: str | os.PathLike[str]) -> Script[None]:
        """Keep a file's bytes under their SHA-256. A repeat changes nothing.

        Raises:
            ValidationError: the bytes have another SHA-256.
            TooLarge: they are over the cluster's limit.
        """
        yield SendFile(path_of("blobs", sha256), query_of(), Path(path))

    @runs
    def get_blob(self, sha256: str, to: str | os.PathLike[str]) -> Script[None]:
        """Write the bytes into the file `to`, whole or not at all. Raises NotFound."""
        yield FetchFile(path_of("blobs", sha256), query_of(), to)
