"""Makes sure that `monoids` is the package of this project, and no file of that name in the user's folder."""

import monoids

if not hasattr(monoids, "MonoidError"):
    raise ImportError(
        f"file={monoids.__file__!r} is imported in the place of the package monoids, which persistent_state needs; "
        "rename it.",
        name="monoids",
        path=monoids.__file__,
    )
