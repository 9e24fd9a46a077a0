"""What check.py says of small crates."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path
from typing import Any

from check import findings
from modules import Crate


class Check(unittest.TestCase):
    def said(self, files: dict[str, str], **rules: Any) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                file = Path(folder) / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            return findings(Crate(Path(folder)), rules)

    def test_two_files_that_use_each_other_are_a_circle(self) -> None:
        said = self.said({"lib.rs": "mod a; mod b;", "a.rs": "use crate::b::B; struct A;", "b.rs": "fn f(_: &super::a::A) {} struct B;"})
        self.assertEqual(said, ["circle of 2 files", "    a.rs uses b.rs: B", "    b.rs uses a.rs: A"])

    def test_the_other_way_round_in_tests_comments_and_texts_is_none(self) -> None:
        b = 'struct B; /* crate::a::A */ // crate::a::A\nconst C: &str = "crate::a::A"; #[cfg(test)] mod tests { use crate::a::A; }'
        self.assertEqual(self.said({"lib.rs": "mod a; mod b;", "a.rs": "use crate::b::B;", "b.rs": b}), [])

    def test_a_table_of_contents_hands_on_and_is_no_part_of_a_circle(self) -> None:
        files = {
            "lib.rs": "mod room; pub use room::A;",
            "room/mod.rs": "mod a; mod b; pub(crate) use a::A; pub(crate) use b::*;",
            "room/a.rs": "struct A; use crate::room::B;",
            "room/b.rs": "pub(crate) struct B;",
        }
        self.assertEqual(self.said(files), [])
        files["room/b.rs"] = "pub(crate) struct B(crate::A);"
        self.assertEqual(self.said(files), ["circle of 2 files", "    room/a.rs uses room/b.rs: B", "    room/b.rs uses room/a.rs: A"])

    def test_a_module_that_is_named_is_used_where_something_of_it_is(self) -> None:
        files = {"lib.rs": "mod a; mod b;", "a.rs": "use crate::b::{self as other}; fn f() { other::g() }", "b.rs": "use crate::a; fn g() { a::f() }"}
        self.assertEqual(self.said(files), ["circle of 2 files", "    a.rs uses b.rs: g", "    b.rs uses a.rs: f"])
        self.assertEqual(self.said({**files, "b.rs": "use crate::a; fn g() {}"}), [])

    def test_a_module_within_a_file_is_of_that_file(self) -> None:
        files = {"lib.rs": "mod a; mod b;", "a.rs": "fn f() {} mod inner { use super::f; fn g() { crate::b::h() } }", "b.rs": "fn h() {}"}
        self.assertEqual(self.said(files), [])
        self.assertEqual(self.said({**files, "b.rs": "use crate::a::inner::g;"}), ["circle of 2 files", "    a.rs uses b.rs: h", "    b.rs uses a.rs: g"])

    def test_a_file_uses_none_of_a_floor_above_its_own(self) -> None:
        files = {"lib.rs": "mod low; mod high;", "low.rs": "use crate::high::H;", "high.rs": "struct H;"}
        self.assertEqual(self.said(files, floors=[["low"], ["high"]]), ["low.rs uses high.rs, which stands above it: H"])
        self.assertEqual(self.said(files, floors=[["high"], ["low"]]), [])
        self.assertEqual(self.said(files, floors=[["high"]]), ["low is on no floor of rules.toml"])

    def test_what_runs_in_the_handler_uses_its_own_rooms_and_does_nothing_that_may_wait(self) -> None:
        files = {"lib.rs": "mod stack; mod far;", "stack/mod.rs": "mod walk;", "stack/walk.rs": "fn f() { crate::far::g(); format!(); }", "far.rs": "fn g() {}"}
        handler = {"rooms": ["stack"], "may_use": [], "crates": ["std::ptr"]}
        self.assertEqual(
            self.said(files, handler=handler),
            ["stack/walk.rs runs in the signal handler and uses far.rs: g", "stack/walk.rs runs in the signal handler and says format!"],
        )
        files["stack/walk.rs"] = "use std::{ptr, collections::BTreeMap}; fn f() { crate::far::g(); }"
        self.assertEqual(self.said(files, handler={**handler, "may_use": ["far"]}), ["stack/walk.rs runs in the signal handler and uses std::collections::BTreeMap"])


if __name__ == "__main__":
    unittest.main()
