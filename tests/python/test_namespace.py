# SPDX-License-Identifier: Apache-2.0
"""Spaces and manifests: canonical form, making, comparing."""

import errno
import json
import multiprocessing
import os
import unittest

import ucmfs
from ucmfs import namespace
from tests.python.support import (GEOMETRY, LIMIT, MOUNT, TIER, id_of,
                                  needs_mount, pages_layout, payload_of)

# of ucmfs(8), "Spaces"
MANUAL = {"model": "example-8b", "hash": "sha256",
          "geometry": {"num_layers": 32, "block_size": 16,
                       "dtype": "float16", "k_bytes": 32768,
                       "v_bytes": 32768, "num_kv_heads": 8,
                       "head_dim": 128, "order": "NHD"}}
MANUAL_ID = "275d7a213725df26baa80ca4ccdf3d11daf26dbfd81cbe0216a84ed56f23760c"


def manifest(**more):
    return {"model": "test", "geometry": GEOMETRY.to_json(), **more}


def race(place, name, content, barrier, answers):
    barrier.wait()
    try:
        answers.put(ucmfs.ensure_space(place.get("mount"), name, content,
                                       tiers=place.get("tiers")).hex())
    except ucmfs.NamespaceMismatch as error:
        answers.put(f"mismatch {error.key}")


class Manifests(unittest.TestCase):
    def test_have_the_id_of_the_manual(self):
        self.assertEqual(ucmfs.space_id(MANUAL).hex(), MANUAL_ID)
        self.assertEqual(ucmfs.default_name("m", MANUAL),
                         "m-275d7a213725")

    def test_are_what_json_writes(self):
        value = manifest(z=[1, True, None, {"ä": "ö/\U0001f600"}], a=-5)
        self.assertEqual(ucmfs.canonical(value), json.dumps(
            value, sort_keys=True, separators=(",", ":"),
            ensure_ascii=False).encode())
        self.assertEqual(ucmfs.canonical(manifest(z=(1, 2))),
                         ucmfs.canonical(manifest(z=[1, 2])))

    def test_do_not_differ_by_their_quota(self):
        self.assertEqual(ucmfs.canonical(manifest(quota="5G")),
                         ucmfs.canonical(manifest()))

    def test_that_have_no_one_form_are_refused(self):
        for change, text in (
                ({"x": 1.5}, "x is 1.5"), ({"x": {"y": [float("nan")]}},
                                           "x.y[0]"),
                ({"x": "a\nb"}, "control character in x"),
                ({"x": {1: 2}}, "the key 1 of x"),
                ({"x": b"1"}, "x is b'1'"), ({"x": 1 << 63}, "too large"),
                ({"x": "\ud800"}, "manifest"), ({"x": "y" * 65536}, "65535"),
                ({"geometry": 1}, "geometry is missing")):
            with self.assertRaises(ucmfs.InvalidArgument) as caught:
                ucmfs.canonical({**manifest(), **change})
            self.assertIn(text, str(caught.exception))

    def test_names_are_checked(self):
        for name in ("", ".x", "a/b", "a\nb", "x" * 129):
            with self.assertRaises(ucmfs.InvalidArgument):
                namespace.check_name(name)
        namespace.check_name("ä" * 64)


class Places:
    """The same on a mount, on its socket, and on directories."""

    place = {}

    def root(self):
        """Where the folders are."""
        return self.place.get("mount") or self.place["tiers"][0]

    def ensure(self, name, content):
        return ucmfs.ensure_space(self.place.get("mount"), name, content,
                                  tiers=self.place.get("tiers"))

    def read(self, name):
        return namespace.read_manifest(self.place.get("mount"), name,
                                       tiers=self.place.get("tiers"))

    def name(self):
        return f"{type(self).__name__}-{self.id().rpartition('.')[2]}"

    def test_are_made_once(self):
        name, content = self.name(), manifest()
        want = ucmfs.space_id(content)
        self.assertEqual(self.ensure(name, content), want)
        self.assertEqual(self.ensure(name, dict(reversed(
            list(content.items())))), want)
        self.assertEqual(self.read(name), content)
        self.assertEqual(
            [f for f in os.listdir(os.path.join(self.root(), "spaces", name))
             if f.startswith(".")], [])

    def test_for_something_else_are_refused(self):
        name = self.name()
        self.ensure(name, manifest(a={"b": [1, 2]}, z=1))
        for content, key, here, wanted in (
                (manifest(a={"b": [1, 3]}, z=2), "a.b", [1, 2], [1, 3]),
                (manifest(a={"b": [1, 2]}), "z", 1, None),
                (manifest(a={"b": [1, 2]}, z=True), "z", 1, True),
                ({**manifest(a={"b": [1, 2]}, z=1), "geometry":
                  {**GEOMETRY.to_json(), "num_layers": 3}},
                 "geometry.num_layers", 2, 3),
                (manifest(a={"b": [1, 2]}, y=0, z=1), "y", None, 0)):
            with self.assertRaises(ucmfs.NamespaceMismatch) as caught:
                self.ensure(name, content)
            error = caught.exception
            self.assertEqual((error.key, error.here, error.wanted),
                             (key, here, wanted))
            for part in (name, key, "not set" if wanted is None
                         else repr(wanted)):
                self.assertIn(part, str(error))

    def test_keep_the_quota_that_is_there(self):
        name = self.name()
        folder = os.path.join(self.root(), "spaces", name)
        os.makedirs(folder)
        with open(os.path.join(folder, "space.json"), "w",
                  encoding="ascii") as file:
            file.write('{"quota": 5000000}')
        self.assertIsNone(self.read(name))
        want = ucmfs.space_id(manifest())
        for _ in range(2):
            self.assertEqual(self.ensure(name, manifest()), want)
            self.assertEqual(self.read(name),
                             manifest(quota=5000000))
        with self.assertRaises(ucmfs.NamespaceMismatch) as caught:
            self.ensure(name, manifest(x=1))
        self.assertEqual(caught.exception.key, "x")

    def test_are_made_by_many_at_once(self):
        context = multiprocessing.get_context("fork")
        for turn in range(5):
            name = f"{self.name()}-{turn}"
            barrier, answers = context.Barrier(8), context.Queue()
            contents = [manifest(who=0), manifest(who=1)]
            workers = [context.Process(target=race, args=(
                self.place, name, contents[n % 2], barrier, answers))
                for n in range(8)]
            for worker in workers:
                worker.start()
            seen = sorted(answers.get(timeout=LIMIT) for _ in workers)
            for worker in workers:
                worker.join()
            here = self.read(name)
            self.assertIn(here, contents)
            self.assertEqual(seen, [ucmfs.space_id(here).hex()] * 4 +
                             ["mismatch who"] * 4)


@needs_mount
class OnMount(Places, unittest.TestCase):
    place = {"mount": MOUNT}

    def test_that_are_wrong_for_the_mount_say_so(self):
        with self.assertRaises(ucmfs.InvalidArgument) as caught:
            self.ensure(self.name(), {"geometry": {"num_layers": 0}})
        self.assertIn("geometry.num_layers", str(caught.exception))
        self.assertFalse(os.path.exists(os.path.join(MOUNT, "spaces",
                                                     self.name())))

    def test_with_other_blocks_are_refused(self):
        name = self.name()
        os.mkdir(os.path.join(MOUNT, "spaces", name))
        _, layout = pages_layout(payload_of("x"))
        # also one that the daemon would take
        same = {"num_layers": 2, "block_size": 16, "dtype": "opaque",
                "k_bytes": 512, "v_bytes": 512, "order": "opaque"}
        with ucmfs.Loader(MOUNT) as loader:
            loader.add_group(layout, name).save(id_of("x"), [0]).wait(LIMIT)
        for geometry in (GEOMETRY.to_json(), same):
            for place in ({"mount": MOUNT}, {"mount": None,
                                             "tiers": [TIER]}):
                with self.assertRaises(ucmfs.NamespaceMismatch) as caught:
                    ucmfs.ensure_space(name=name, **place, manifest={
                        "geometry": geometry})
                self.assertIn("blocks and no manifest",
                              str(caught.exception))
        self.assertIsNone(namespace.read_manifest(MOUNT, name))

    def test_that_are_removed_take_their_blocks_along(self):
        name = self.name()
        _, layout = pages_layout(payload_of("x"))
        with ucmfs.Loader(MOUNT) as loader:
            content = manifest(geometry=layout.geometry.to_json())
            self.ensure(name, content)
            group = loader.add_group(layout, name)
            group.save(id_of("x"), [0]).wait(LIMIT)
            with ucmfs.Blocks(MOUNT) as blocks:
                self.assertEqual(blocks.pin([id_of("x")], name), [0])
        namespace.remove_space(MOUNT, name)
        self.assertNotIn(name, namespace.spaces(MOUNT))
        self.assertFalse(os.path.exists(os.path.join(TIER, "spaces", name)))
        with self.assertRaises(ucmfs.NotFound) as caught:
            namespace.remove_space(MOUNT, name)
        self.assertIn(name, str(caught.exception))
        for wrong in (".", "x/y", ""):
            with self.assertRaises(ucmfs.InvalidArgument):
                namespace.remove_space(MOUNT, wrong)

    def test_that_are_in_use_stay(self):
        name = self.name()
        self.ensure(name, manifest())
        path = os.path.join(MOUNT, "spaces", name, "3f",
                            "3f" * 16 + ".bin.tmp")
        with open(path, "wb"):
            with self.assertRaises(ucmfs.UcmfsError) as caught:
                namespace.remove_space(MOUNT, name)
            self.assertIn(caught.exception.errno, (errno.ENOTEMPTY,
                                                   errno.EBUSY))
        self.assertEqual(namespace.read_manifest(MOUNT, name), manifest())


@needs_mount
class OnSocket(Places, unittest.TestCase):
    """Of the same daemon, by its path: no file of the mount is opened."""

    @classmethod
    def setUpClass(cls):
        cls.place = {"mount": os.readlink(os.path.join(MOUNT, ".ucmfs",
                                                       "socket"))}

    def root(self):
        return MOUNT

    def test_are_listed_and_removed(self):
        name, socket = self.name(), self.place["mount"]
        self.ensure(name, manifest())
        self.assertIn(name, namespace.spaces(socket))
        self.assertEqual(namespace.nearest(socket, name[:-1], "other",
                                           manifest(x=1))[0], name)
        namespace.remove_space(socket, name)
        self.assertNotIn(name, namespace.spaces(socket))
        self.assertIsNone(namespace.read_manifest(socket, name))
        with self.assertRaises(ucmfs.NotFound):
            namespace.remove_space(socket, name)

    def test_of_others_are_private_as_their_umask_says(self):
        before = os.umask(0o077)
        try:
            self.ensure(self.name(), manifest())
        finally:
            os.umask(before)
        self.assertEqual(os.stat(os.path.join(
            TIER, "spaces", self.name())).st_mode & 0o777, 0o700)


@needs_mount
class OnTiers(Places, unittest.TestCase):
    """That no daemon has: a private one is started."""

    place = {"tiers": [os.path.join(TIER or "/", "..", "other"),
                       os.path.join(TIER or "/", "..", "third")]}

    @classmethod
    def setUpClass(cls):
        for path in cls.place["tiers"]:
            os.makedirs(path, exist_ok=True)

    def test_that_are_not_there_are_named(self):
        for place, text in (((None, []), "a mount, or tiers"),
                            ((MOUNT, [TIER]), "a mount, or tiers"),
                            ((None, ["/nowhere"]), "/nowhere")):
            with self.assertRaises(ucmfs.UcmfsError) as caught:
                ucmfs.ensure_space(place[0], "x", manifest(),
                                   tiers=place[1])
            self.assertIn(text, str(caught.exception))


if __name__ == "__main__":
    unittest.main()
