# SPDX-License-Identifier: Apache-2.0
"""Configurations of UCM's connectors: each key mapped, told, or refused."""

import errno
import json
import os
import tempfile
import unittest
from unittest import mock

import ucmfs
from tests.python.support import MOUNT, needs_mount
from ucmfs import config, factory

try:
    import yaml
except ImportError:
    yaml = None

# As in UCM's documents.
PIPELINE = """
ucm_connectors:
  - ucm_connector_name: "UcmPipelineStore"
    ucm_connector_config:
      store_pipeline: "Cache|Posix"
      storage_backends: "/data/ucm_cache"
      buffer_number: 2048
      block_size: 16
      shard_size: 2048
      tensor_size: 65536

ucm_sparse_method: "GSA"
ucm_sparse_config:
  GSA:
    sparse_ratio: 0.3
    prefetch_workers: 4
"""
NFS = {
    "ucm_connectors": [{
        "ucm_connector_name": "UcmNfsStore",
        "ucm_connector_config": {
            "storage_backends": "/mnt/nfs/kv_cache", "io_direct": False,
            "stream_number": 32, "buffer_number": 512, "block_size": 16}}],
    "ucm_sparse_config": {"ESA": {"init_window_sz": 1}},
    "metrics_config_path": "/etc/ucm/metrics.yaml",
    "load_only_first_rank": False, "enable_prefix_cache": True,
}
TIERED = {"storage_backends": "/mnt/nfs1:/mnt/nfs2:/mnt/ssd_cache",
          "storage_policy": "tiered"}
BLEND = {"store_pipeline": "Cache|Posix",
         "storage_backends": "/data/ucm_cache", "blend_chunk_size": 64,
         "min_match_ratio": 0.8}

# Right values, where 3 is none.
GOOD = {
    "io": "uring", "copy": "host", "verify": "header", "space": "s",
    "posix_io_engine": "aio", "hash_method": "md5", "use_layerwise": True,
    "enable_prefix_cache": True, "use_lite": False,
    "use_inference_duration_monitor": False}


def read(source, **more):
    return ucmfs.validate_config(source, check_paths=False, **more)


def refused(test, source, key, text, **more):
    with test.assertRaises(ucmfs.ConfigError) as caught:
        read(source, **more)
    test.assertEqual(caught.exception.key, key)
    test.assertIn(text, str(caught.exception))


class Documents(unittest.TestCase):
    @unittest.skipUnless(yaml, "needs PyYAML")
    def test_yaml_of_a_pipeline(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(PIPELINE)
            file.flush()
            found = read(file.name)
            with mock.patch.dict(os.environ, UCM_CONFIG_FILE=file.name):
                self.assertEqual(read(None), found)
            self.assertEqual(read({"UCM_CONFIG_FILE": file.name}), found)
        self.assertEqual(found.connector, "UcmPipelineStore")
        self.assertEqual(found.tiers, ["/data/ucm_cache"])
        self.assertIsNone(found.mount)
        self.assertEqual(found.store_options, {})
        for key in ("store_pipeline", "buffer_number", "block_size",
                    "tensor_size", "ucm_sparse_method", "ucm_sparse_config"):
            self.assertTrue(any(key in note for note in found.notes), key)

    def test_nfs(self):
        found = read(NFS)
        self.assertEqual(found.connector, "UcmNfsStore")
        self.assertEqual(found.engine_options, {"prefix_cache": True})
        self.assertEqual(len(found.notes), 7)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(NFS, file)
            file.flush()
            self.assertEqual(read(file.name), found)

    def test_several_paths(self):
        self.assertEqual(read(TIERED).tiers, ["/mnt/nfs1", "/mnt/nfs2",
                                              "/mnt/ssd_cache"])
        self.assertEqual(read({"storage_backends": ["/a", "/b:c"]}).tiers,
                         ["/a", "/b:c"])

    def test_blending_is_refused(self):
        refused(self, BLEND, "blend_chunk_size", "UcmfsBlendConnector")

    def test_a_cache_in_front_of_a_backend(self):
        found = read({"cache_size": 1, "backend": {
            "name": "UcmPosixStore", "config": {"storage_backends": "/a"}}})
        self.assertEqual(found.tiers, ["/a"])
        refused(self, {"backend": {"name": "UcmX", "config": {}}},
                "backend.name", "unknown")


class Keys(unittest.TestCase):
    def test_are_each_mapped_told_or_refused(self):
        seen = 0
        for table in (config.CONNECTOR_KEYS, config.TOP_KEYS):
            for key, rule in table.items():
                if isinstance(rule, config.Special):
                    continue
                seen += 1
                value = GOOD.get(key, 3)
                with self.subTest(key):
                    if isinstance(rule, config.Refuse):
                        refused(self, {"mount": "/m", key: value}, key,
                                "it cannot be had: ")
                        continue
                    found = read({"mount": "/m", key: value})
                    if isinstance(rule, (config.Note, config.Off)):
                        self.assertEqual(len(found.notes), 1)
                        self.assertIn(f"{key} {value}: no effect: ",
                                      found.notes[0])
                        continue
                    options = getattr(found, f"{rule.part}_options")
                    self.assertEqual(list(options), [rule.name])
                    refused(self, {"mount": "/m", key: [1]}, key, "is needed")
        self.assertGreater(seen, 60)

    def test_specials_have_functions(self):
        for key, rule in config.CONNECTOR_KEYS.items():
            if isinstance(rule, config.Special):
                self.assertTrue(hasattr(config._Reader, f"set_{key}"), key)

    def test_of_upstreams_tables_are_known(self):
        # of its Posix, Cache, Ds3fs, pipeline and pc stores
        for key in """storage_backends device_id tensor_size shard_size
                block_size posix_io_engine io_direct
                posix_data_trans_concurrency posix_lookup_concurrency
                posix_open_concurrency posix_commit_concurrency timeout_ms
                data_dir_shard_bytes cpu_affinity_cores posix_gc_enable
                posix_capacity_gb posix_gc_trigger_threshold_ratio
                posix_gc_recycle_percent posix_gc_concurrency
                posix_gc_check_interval_sec posix_gc_shard_sample_ratio
                posix_gc_max_recycle_count_per_shard store_backend unique_id
                tensor_size_list share_buffer_enable cache_buffer_capacity_gb
                waiting_queue_depth running_queue_depth cache_stream_number
                stream_number ior_entries ior_depth numa_id local_rank_size
                buffer_number scatter_gather_enable store_pipeline
                """.split():
            self.assertIn(key, config.CONNECTOR_KEYS)
        for key in """use_layerwise enable_event_sync metrics_config_path
                hit_ratio ucm_sparse_config ucm_connectors""".split():
            self.assertIn(key, config.TOP_KEYS)
        # of 0.8.1
        for key in """store_health posix_gc_precise_mode compress_ratio use_gdr
                posix_gc_cross_instance_lock cache_io_aggregation
                cache_load_exclusive_buffer_number cache_load_backend_only
                """.split():
            self.assertIn(key, config.CONNECTOR_KEYS)
        for key in """persist_token_threshold load_tokens_threshold use_lite
                use_request_async_load use_consistency_manager
                enable_record_traces wa_dump_block_wise""".split():
            self.assertIn(key, config.TOP_KEYS)

    def test_of_health_are_always_on(self):
        found = read({"mount": "/m", "store_health": {
            "health_check_interval_s": 5}, "health_window_size": 8})
        self.assertEqual(len(found.notes), 2)
        for note in found.notes:
            self.assertIn("always on: a transfer ends after deadline_ms", note)

    def test_that_keep_nothing_may_be_off(self):
        for key in ("use_lite", "use_inference_duration_monitor"):
            found = read({"mount": "/m", key: False})
            self.assertIn(key, found.notes[0])
            refused(self, {"mount": "/m", key: True}, key, "cannot be had")
        refused(self, {"mount": "/m", "use_lite": True}, "use_lite",
                "ucm replay")

    def test_that_change_blocks_are_refused(self):
        refused(self, {"mount": "/m", "store_pipeline":
                       "Cache|Compress|Posix"}, "store_pipeline",
                "Compress cannot be had: blocks are stored as they are")
        refused(self, {"mount": "/m", "compress_ratio": 20}, "compress_ratio",
                "stored as they are")
        for stage in ("YuanRong", "Dram", "ASU", "Delegator"):
            refused(self, {"mount": "/m", "store_pipeline": stage},
                    "store_pipeline", "no client of it")

    def test_values(self):
        for source, part, want in (
                ({"timeout_ms": 5}, "store", {"deadline_ms": 5}),
                ({"posix_io_engine": "psync"}, "loader", {"io": "threads"}),
                ({"posix_io_engine": "aio"}, "loader", {"io": "auto"}),
                ({"device_id": 1}, "loader", {"device": 1}),
                ({"device": -1}, "loader", {}),
                ({"use_layerwise": True}, "engine", {"layerwise": True}),
                ({"persist_token_threshold": 9}, "engine",
                 {"persist_token_threshold": 9}),
                ({"hash_method": "md5"}, "engine", {"hash": "ucm"}),
                ({"hash_method": "sha256"}, "engine", {"hash": "sha256"}),
                ({"tensor_size": 512, "shard_size": 1024,
                  "block_size": 4096}, "store",
                 {"tensor_size": 512, "shard_size": 1024,
                  "block_size": 4096}),
                ({"tensor_size": 512}, "store", {"tensor_size": 512}),
                ({"tensor_size": 512, "block_size": 1000}, "store", {}),
                ({"block_size": 16}, "store", {})):
            found = read({"mount": "/m", **source})
            self.assertEqual(getattr(found, f"{part}_options"), want, source)

    def test_that_nobody_knows_are_refused(self):
        for source, key, text in (
                ({"storage_backend": "/a"}, "storage_backend",
                 "did you mean storage_backends?"),
                ({"mount": "/m", "xyzzy": 1}, "xyzzy", "unknown; there are"),
                ({"ucm_conectors": []}, "ucm_conectors",
                 "did you mean ucm_connectors?"),
                ({"ucm_connectors": [{"ucm_connector_name": "UcmPcStore",
                                      "ucm_connector_conf": {}}]},
                 "ucm_connectors[0].ucm_connector_conf",
                 "did you mean ucm_connector_config?"),
                ({"ucm_connectors": [{
                    "ucm_connector_name": "UcmPcStore",
                    "ucm_connector_config": {"io_drect": 1}}]},
                 "ucm_connectors[0].ucm_connector_config.io_drect",
                 "did you mean io_direct?"),
                ({"mount": "/m", "store_pipeline": "Cache|Possix"},
                 "store_pipeline", "did you mean Posix?"),
                ({"mount": "/m", "store_pipeline": "Cache|Empty"},
                 "store_pipeline", "the pipeline Cache")):
            refused(self, source, key, text)

    def test_that_are_missing_are_named(self):
        for source, key in (
                ({}, "ucm_connectors"), ({"use_layerwise": True},
                                         "ucm_connectors"),
                ({"ucm_connectors": []}, "ucm_connectors"),
                ({"ucm_connectors": ["x"]}, "ucm_connectors[0]"),
                ({"ucm_connectors": [{"ucm_connector_config": {}}]},
                 "ucm_connectors[0].ucm_connector_name"),
                ({"ucm_connectors": [{"ucm_connector_name": "UcmPcStore"}]},
                 "ucm_connectors[0].ucm_connector_config"),
                ({"ucm_connectors": [{"ucm_connector_name": "UcmPcStore",
                                      "ucm_connector_config": {}}]},
                 "storage_backends"),
                ({"storage_backends": ""}, "storage_backends"),
                ({"storage_backends": 5}, "storage_backends"),
                ({**NFS, "io_direct": True}, "io_direct")):
            refused(self, source, key, "")

    def test_a_socket_stands_for_a_mount(self):
        found = ucmfs.validate_config({"socket": "/run/x.sock"},
                                      check_paths=False)
        self.assertEqual((found.mount, found.tiers), ("/run/x.sock", []))

    def test_mount_socket_and_directories_do_not_go_together(self):
        for source, key in (
                ({"mount": "/m", "storage_backends": "/a"},
                 "storage_backends"),
                ({"socket": "/s", "tiers": "/a"}, "tiers"),
                ({"mount": "/m", "socket": "/s"}, "socket")):
            refused(self, source, key, "one of mount, socket and tiers")


class Files(unittest.TestCase):
    def test_that_cannot_be_read_are_named(self):
        with tempfile.TemporaryDirectory() as path:
            name = os.path.join(path, "a.json")
            refused(self, name, "", "No such file")
            for text, why in (("{", "Expecting"), ("[1]", "no mapping")):
                with open(name, "w", encoding="utf-8") as file:
                    file.write(text)
                refused(self, name, "", why)

    def test_none_at_all_is_told(self):
        with mock.patch.dict(os.environ):
            os.environ.pop("UCM_CONFIG_FILE", None)
            refused(self, None, "", "$UCM_CONFIG_FILE is not set")

    @needs_mount
    def test_path_in_a_mount_is_its_mount(self):
        for path in (MOUNT, os.path.join(MOUNT, "blocks")):
            found = ucmfs.validate_config({"storage_backends": path})
            self.assertEqual((found.mount, found.tiers),
                             (os.path.abspath(MOUNT), []))

    def test_directories_are_tiers_or_may_become_some(self):
        with tempfile.TemporaryDirectory() as path:
            for name in ("empty", "disk/lost+found", "begun/.ucmfs",
                         "tier/.ucmfs", "full", "colon:s"):
                os.makedirs(os.path.join(path, name))
            for name in ("tier/.ucmfs/id", "tier/spaces", "full/data"):
                with open(os.path.join(path, name), "wb"):
                    pass
            for key in ("storage_backends", "storage_path", "nfs_path",
                        "tiers"):
                for name in ("empty", "disk", "begun", "tier"):
                    where = f"{path}/{name}"
                    found = ucmfs.validate_config({key: where})
                    self.assertEqual((found.mount, found.tiers),
                                     (None, [where]))
                for name, text in (
                        ("full", "full is no tier of ucmfs and has data in"),
                        ("none", "none: no such directory"),
                        ("full/data", "full/data: no such directory"),
                        ("empty,none", "none: no such directory")):
                    self.refused_directory(key, f"{path}/{name}", text)
            self.refused_directory("tiers", [f"{path}/colon:s"], "no colon")
            named = f"fast={path}/empty,{path}/disk"
            self.assertEqual(ucmfs.validate_config({"tiers": named}).tiers,
                             [named])
            self.assertEqual(os.listdir(f"{path}/empty"), [])

    def refused_directory(self, key, where, text):
        with self.assertRaises(ucmfs.ConfigError) as caught:
            ucmfs.validate_config({key: where})
        self.assertIn(text, str(caught.exception))
        self.assertEqual(caught.exception.key, key)

    def test_those_that_cannot_be_listed_are_named(self):
        with tempfile.TemporaryDirectory() as path, \
                mock.patch("os.scandir", side_effect=PermissionError(
                    errno.EACCES, os.strerror(errno.EACCES))):
            self.refused_directory("storage_backends", path,
                                   f"{path}: Permission denied")

    def test_memory_is_a_tier(self):
        found = read({"tiers": "mem@8G:/a"})
        self.assertEqual(found.tiers, ["mem@8G", "/a"])
        with tempfile.TemporaryDirectory() as path:
            found = ucmfs.validate_config({"tiers": ["mem@8G", path]})
            self.assertEqual(found.tiers, ["mem@8G", path])

    def test_of_several_connectors_one_is_there(self):
        with tempfile.TemporaryDirectory() as path:
            entries = [{"ucm_connector_name": name, "ucm_connector_config": {
                "storage_backends": where}} for name, where in (
                    ("UcmPcStore", f"{path}/none"), ("UcmNfsStore", path))]
            found = read({"ucm_connectors": entries})
            self.assertEqual(found.connector, "UcmNfsStore")
            self.assertIn("of 2 number 1 is used", found.notes[0])


    def test_of_several_with_lists_of_stages_one_is_there(self):
        with tempfile.TemporaryDirectory() as path:
            entries = [{"ucm_connector_name": "UcmPipelineStore",
                        "ucm_connector_config": {key: [
                            {"type": "cache"}, {"type": "posix",
                                                "path": where}]}}
                       for key, where in (("pipeline", f"{path}/none"),
                                          ("store_pipeline", path))]
            self.assertEqual(read({"ucm_connectors": entries}).tiers, [path])

    def test_a_pipeline_is_a_text_or_a_list(self):
        for stages in ("Posix", "Cache|Posix", "Cache|Ds3fs", "Fake"):
            for key in ("pipeline", "store_pipeline"):
                one, other = (
                    read({"storage_backends": "/a", key: given})
                    for given in (stages, stages.split("|")))
                self.assertEqual((other.tiers, other.measuring,
                                  len(other.notes)),
                                 (one.tiers, one.measuring, len(one.notes)))
        found = read({"pipeline": [{"type": "Cache", "size_gb": 1},
                                   {"type": "Posix", "path": "/a"}],
                      "posix": {"timeout_ms": 5}})
        self.assertEqual((found.tiers, found.store_options),
                         (["/a"], {"deadline_ms": 5}))
        for given, key, text in (
                (["Cache", "Possix"], "pipeline", "did you mean Posix?"),
                (["Compress"], "pipeline", "cannot be had"),
                ([], "pipeline", "a stage is needed"),
                (["Cache", {"type": "posix"}], "pipeline[0]", "a mapping"),
                ([{"type": ["x"]}], "pipeline[0].type", "unknown")):
            refused(self, {"mount": "/m", "pipeline": given}, key, text)

class Factory(unittest.TestCase):
    def test_knows_upstreams_names(self):
        for kind in (factory.UcmConnectorFactory,
                     factory.UcmConnectorFactoryV1):
            self.assertLessEqual(
                {"UcmPipelineStore", "UcmNfsStore", "UcmPosixStore",
                 "UcmPcStore", "UcmDs3fsStore"}, set(kind.names()))

    def test_refuses_other_names(self):
        for name, text in (
                ("UcmNfStore", "did you mean UcmNfsStore?"),
                ("X", "there are UcmCacheStore, UcmDs3fsStore"),
                ("UcmMooncakeStore", "cannot be had")):
            with self.assertRaises(ucmfs.ConfigError) as caught:
                factory.UcmConnectorFactoryV1.create_connector(name, {})
            self.assertIn(text, str(caught.exception))
            refused(self, {"ucm_connectors": [{
                "ucm_connector_name": name, "ucm_connector_config": {}}]},
                "ucm_connectors[0].ucm_connector_name", text)

    def test_makes_stores_that_keep_no_data(self):
        sizes = {"tensor_size": 4, "shard_size": 8, "block_size": 16}
        ids = [bytes([i] * 16) for i in (1, 2, 3)]
        for form in (factory.UcmConnectorFactory,
                     factory.UcmConnectorFactoryV1):
            for config, name in (({}, "Ucm{}Store"),
                                 ({"pipeline": "{}"}, "UcmPipelineStore")):
                for kind in ("Empty", "Fake"):
                    given = {k: v.format(kind) for k, v in config.items()}
                    with self.assertLogs("ucmfs", "WARNING") as said:
                        store = form.create_connector(
                            name.format(kind), {**sizes, **given})
                    self.assertIn(f"{kind.upper()} STORE", said.output[0])
                    self.assertEqual((store.kind, store.shards),
                                     (kind.lower(), 2))
                    with store:
                        self.use(store, ids, kind == "Fake",
                                 form is factory.UcmConnectorFactory)

    def use(self, store, ids, keeps, by_offset):
        self.assertEqual(store.lookup(ids), [False] * 3)
        self.assertEqual(store.lookup_on_prefix(ids), -1)
        memory = bytearray(b"what was there")
        if by_offset:
            self.assertEqual(store.create(ids[:2]), [0, 0])
        store.dump(ids[:2], [0, 0], [memory, memory]).wait()
        if by_offset:
            self.assertEqual(store.lookup(ids), [False] * 3)
            self.assertEqual(store.commit(ids[:2]), [0, 0])
        self.assertEqual(store.lookup(ids), [keeps, keeps, False])
        self.assertEqual(store.lookup_on_prefix(ids), 1 if keeps else -1)
        task = store.load(ids, [0, 0, 0], [memory] * 3)
        self.assertTrue(task.done())
        there = 0 if keeps else errno.ENOENT
        self.assertEqual(task.errors(), [there, there, errno.ENOENT])
        self.assertEqual(memory, b"what was there")
        with self.assertRaises(ucmfs.UcmfsError):
            task.wait()
        self.assertEqual(store.counts["hits"], 4 if keeps else 0)
        if not by_offset:
            task = store.load_prefix(ids, [[0] * 4] * 3)
            self.assertEqual(task.num_loaded, 2 if keeps else 0)

    def test_a_fake_is_shared_by_its_name(self):
        config = {"tensor_size": 4, "unique_id": f"test {os.getpid()}"}
        made = [factory.UcmConnectorFactoryV1.create_connector(
            "UcmFakeStore", {**config, **more}) for more in
            ({}, {}, {"unique_id": f"other {os.getpid()}"})]
        ids = [b"a" * 16]
        made[0].dump(ids, [0], [b""]).wait()
        self.assertEqual([store.lookup(ids)[0] for store in made],
                         [True, True, False])
        for store in made:
            store.close()
        self.assertEqual([name for name in os.listdir("/dev/shm")
                          if name.startswith("ucmfs-fake")], [])

    def test_a_store_that_keeps_data_is_no_other(self):
        for config in ({"pipeline": "Fake"}, {"pipeline": "Empty"}):
            with self.assertRaises(ucmfs.ConfigError):
                factory.UcmConnectorFactoryV1.create_connector(
                    "UcmPosixStore", {"tensor_size": 4, **config})
        refused(self, {"store_pipeline": "Cache|Fake", "mount": "/m"},
                "store_pipeline", "pipeline Cache")
        found = read({"store_pipeline": "Fake", "mount": "/m"})
        self.assertEqual((found.measuring, found.mount, found.tiers),
                         ("Fake", None, []))
        self.assertIn("keeps nothing there", found.notes[-1])

    def test_makes_classes_of_other_modules(self):
        made = factory.UcmConnectorFactoryV1.create_connector(
            "OrderedDict", {"a": 1}, "collections")
        self.assertEqual(dict(made), {"a": 1})
        found = read({"ucm_connectors": [{
            "ucm_connector_name": "OrderedDict",
            "ucm_connector_module_path": "collections",
            "ucm_connector_config": {"a": 1}}]})
        self.assertEqual((found.module_path, found.connector_config),
                         ("collections", {"a": 1}))
        for module in ("nowhere.at.all", "json"):
            with self.assertRaises(ucmfs.ConfigError):
                factory.UcmConnectorFactoryV1.create_connector(
                    "OrderedDict", {}, module)

    def test_takes_more_names(self):
        class Mine(factory.UcmConnectorFactoryV1):
            _registry = dict(factory.UcmConnectorFactoryV1._registry)

        Mine.register_connector("Mine", "collections", "Counter")
        Mine.register_connector("Mine", "collections", "Counter")
        self.assertEqual(Mine.create_connector("Mine", {"a": 2})["a"], 2)
        with self.assertRaises(ucmfs.ConfigError):
            Mine.register_connector("UcmPcStore", "collections", "Counter")

    def test_needs_sizes(self):
        for sizes in ({}, {"block_size": 16}):
            with self.assertRaises(ucmfs.ConfigError) as caught:
                factory.UcmConnectorFactoryV1.create_connector(
                    "UcmPosixStore", {"mount": "/m", **sizes})
            self.assertEqual(caught.exception.key, "tensor_size")


if __name__ == "__main__":
    unittest.main()
