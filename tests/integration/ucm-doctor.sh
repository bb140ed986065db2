#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ucm doctor: what it says of the machine, of directories that are well and that
# are not, of mounts, and of a dead one; of an engine's Python; and it leaves
# nothing behind.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test fuse python3 setpriv namespace

# doctor STATUS argument...: what it says is in $work/said
doctor() {
	doctor_want=$1
	shift
	"$ucm" doctor "$@" >"$work/said" 2>&1
	same "doctor $*: status" "$doctor_want" $?
}

# says VERDICT 'subject: text'
says() {
	check "$1 $2" grep -q "^$1  *$2" "$work/said"
}

doctor 0 "$work/tier"
says '[OW][KA][RN]*' 'passthrough: Linux'
says OK '/dev/fuse: it can be opened'
says '[OW][KA][RN]*' 'open files: '
says '[OW][KA][RN]*' 'locked memory: '
says '[OW][KA][RN]*' 'clock: '
huge=$(sed 's/.*\[\(.*\)\].*/\1/' /sys/kernel/mm/transparent_hugepage/enabled)
says '[OW][KA][RN]*' "huge pages: $huge"
disk=/sys/dev/block/$(stat -c %Hd:%Ld "$work/tier")
if [ -e "$disk/queue" ]; then
	scheduler=$(sed 's/.*\[\(.*\)\].*/\1/' "$disk/queue/scheduler")
	says '[OW][KA][RN]*' \
		"$work/tier: disk $(basename "$(readlink -f "$disk")").* scheduler $scheduler,"
else
	left_out 'a disk: its folder is not on a whole one'
fi
says OK "$work/tier: mode 0755, of user 0"
says '[OW][KA][RN]*' "$work/tier: .* free"
says OK "$work/tier: link(2) works"
same 'nothing is left there' '' "$(ls -A "$work/tier")"
same 'what is not OK says what mends it' '' \
	"$(grep -v '^OK' "$work/said" | grep -v '; mend: ')"
check 'limits' sh -c 'ulimit -n 1024 && ulimit -l 64 && "$1" doctor "$2" |
	grep -c "^WARN.*\(open files: 1024\|locked memory: 64K\) " | grep -qx 2' \
	sh "$ucm" "$work/tier"

# of a shared directory: who was there
mkdir -p "$work/shared/.ucmfs/hosts"
for heart in now:0 soon:2 gone:60; do
	touch -d "${heart#*:} seconds ago" "$work/shared/.ucmfs/hosts/${heart%:*}"
done
doctor 0 "$work/shared"
says OK "$work/shared: it is shared: 2 daemons there at the last look, 1 more gone"

doctor 1 "$work/none"
says FAIL "$work/none: No such file or directory; mend: mkdir it"
chmod 777 "$work/tier"
doctor 0 "$work/tier"
says WARN "$work/tier: everyone may put blocks"
chmod 755 "$work/tier"

# a file system without hard links or space, in a file system of its own
mkdir "$work/small"
need mount -t tmpfs -o size=64k,nr_inodes=8 none "$work/small"
dd if=/dev/zero of="$work/small/full" bs=4096 status=none 2>/dev/null
doctor 1 "$work/small"
says FAIL "$work/small: no space left"
same 'memory has no disk' 0 "$(grep -c "$work/small: disk" "$work/said")"
need mount -o remount,ro "$work/small"
doctor 1 "$work/small"
says WARN "$work/small: its file system is read-only; mend: .*readonly=TIER"
umount "$work/small"
cp "$ucm" "$work/ucm" && chmod 755 "$work/ucm"
if others_can 'doctor of another user' "$work/ucm" --version; then
	as_nobody "$work/ucm" doctor "$work/tier" >"$work/said"
	says FAIL "$work/tier: no file can be made: Permission denied; mend: chown"
	says '[WF][AI][RI][NL]' 'passthrough: \|/dev/fuse: '
fi

mkdir "$work/slow"
need do_mount "fast=$work/tier:slow=$work/slow"
doctor 0 "$mnt"
says OK "$mnt: it is mounted and answers"
says '[OW][KA][RN]*' "$mnt: passthrough is"
says OK "$mnt: its index is complete"
says OK "$work/slow: link(2) works"
same 'the mount has nothing of it' '' "$(find "$work/tier" "$work/slow" \
	-name '*doctor*')"
"$ucm" doctor --json "$mnt" >"$work/said"
check 'JSON' python3 -c 'import json, sys
x = json.load(open(sys.argv[1]))
assert x["failures"] == 0 and x["ok"] >= 8, x
assert {f["verdict"] for f in x["findings"]} <= {"OK", "WARN"}, x
assert all("mend" in f for f in x["findings"] if f["verdict"] != "OK"), x' \
	"$work/said"
freeze "$(daemon_pid)"
doctor 1 "$mnt"
says FAIL "$mnt: Connection timed out; mend: umount -l $mnt"
says OK "$work/slow: link(2) works"
kill -CONT "$(daemon_pid)"
crash_daemon
doctor 1 "$mnt"
says FAIL "$mnt: its daemon is gone; mend: umount -l $mnt, and mount again"
says OK "$work/slow: link(2) works"
doctor 1
says FAIL "$mnt: its daemon is gone"
umount -l "$mnt"

# ---- an engine ----

# A Python with a vllm and a ucmfs that have what the real ones are asked for.
python=$(command -v python3)
mkdir -p "$work/venv/bin" "$work/lib/vllm/v1/core" "$work/lib/vllm/config" \
	"$work/lib/ucmfs" "$work/none"
cat >"$work/venv/bin/python3" <<END
#!/bin/sh
PYTHONPATH=$work/lib exec $python "\$@"
END
chmod +x "$work/venv/bin/python3"
vllm=$work/lib/vllm
hashing=$vllm/v1/core/kv_cache_utils.py
transfer=$vllm/config/kv_transfer.py
version=$("$ucm" --version | sed -n '1s/.* //p')
cat >"$vllm/__init__.py" <<'END'
print("ucm\nINFO: an engine says much")
__version__ = "0.32.0"
END
echo 'DEFAULT_NONE_HASH_SEED = "fixed"' >"$hashing"
echo '    kv_load_failure_policy: Literal["recompute", "fail"] = "fail"' \
	>"$transfer"
echo "__version__ = \"$version\"" >"$work/lib/ucmfs/__init__.py"
echo 'def crc32c(data): pass' >"$work/lib/ucmfs/hash.py"
unset PYTHONHASHSEED VLLM_PLUGINS
export VIRTUAL_ENV="$work/venv"

# engine STATUS argument...
engine() {
	engine_want=$1
	shift
	doctor "$engine_want" --engine vllm "$@"
}

engine 1 "$work/slow"
says OK 'python3: [0-9.]*, '
says OK 'vllm: 0.32.0 of '
says OK 'hash seed: vLLM 0.32.0 has a fixed one'
says WARN 'load failures: .*; mend: "kv_load_failure_policy": "recompute" in'
says OK "ucmfs: the Python package is $version, and loads libucm"
says '[OW][KA][RN]*' '/dev/shm: .* free'
says FAIL 'mount: nothing that the engine could use; mend: ucmfs DIRECTORY'

# a machine with two GPUs, of which another program has one
cat >"$work/venv/bin/nvidia-smi" <<'END'
#!/bin/sh
query=index,memory.total,memory.free,pci.bus_id
[ "$*" = "--format=csv,noheader,nounits --query-gpu=$query" ] &&
	printf '0, 81559, 80994, 00000000:81:00.0\n1, 81559, 20000, 00000000:C1:00.0\n'
END
chmod +x "$work/venv/bin/nvidia-smi"
path=$PATH
PATH=$work/venv/bin:$PATH
engine 1 "$work/slow"
PATH=$path
says OK 'GPU 0: 80994 of 81559 MiB are free'
says WARN 'GPU 1: 20000 of 81559 MiB are free, and vLLM takes 92 % when it starts; mend: .*gpu-memory'
rm "$work/venv/bin/nvidia-smi"

need do_mount "fast=$work/tier:slow=$work/slow"
engine 0 "$mnt"
says OK "$mnt/files: user 0 may write there"
says OK "$mnt/spaces: user 0 may write there"
if others_can 'the engine of another user' "$work/ucm" --version; then
	as_nobody "$work/ucm" doctor -e vllm "$mnt" >"$work/said"
	says FAIL "$mnt/files: user [0-9]* may not write there; mend: .*other"
	do_umount
	need do_mount -o allow_other "fast=$work/tier:slow=$work/slow"
	as_nobody "$work/ucm" doctor -e vllm "$mnt" >"$work/said"
	says FAIL "$mnt/files: user [0-9]* may not write there; mend: .*uid="
fi
"$ucm" doctor --engine vllm --json "$mnt" >"$work/said"
check 'JSON of an engine' python3 -c 'import json, sys
x = {f["subject"]: f for f in json.load(open(sys.argv[1]))["findings"]}
assert x["vllm"]["verdict"] == x["ucmfs"]["verdict"] == "OK", x
assert x["load failures"]["mend"].startswith("\"kv_load"), x' "$work/said"

# the entry point of a package that is installed, and vLLM's hooks for it
engine 0 "$mnt"
says WARN 'plug-in: no tier .*: no entry point ucmfs of vllm.general_plugins; .*UcmfsTier work'
mkdir "$work/lib/ucmfs-0.dist-info" "$work/lib/ucmfs/vllm"
: >"$work/lib/ucmfs/vllm/__init__.py"
cp "$top_srcdir/python/ucmfs/vllm/plugin.py" "$work/lib/ucmfs/vllm"
printf 'Metadata-Version: 2.1\nName: ucmfs\nVersion: 0\n' \
	>"$work/lib/ucmfs-0.dist-info/METADATA"
sed -n '/"vllm.general_plugins"/,/^$/s/"//gp' "$top_srcdir/python/pyproject.toml" |
	sed 's/^.project.entry-points./[/' \
	>"$work/lib/ucmfs-0.dist-info/entry_points.txt"
engine 0 "$mnt"
says WARN 'plug-in: no tier .*: the tier "ucmfs": No module .*; connectors .* No module .*; sparse attention: No'
tiering=$vllm/v1/kv_offload/tiering/factory.py
mkdir -p "${tiering%/*}"
cat >"$tiering" <<'END'
class SecondaryTierFactory:
    @staticmethod
    def register_tier(*names): assert names[0] == "ucmfs"
END
connectors=$vllm/distributed/kv_transfer/kv_connector/factory.py
mkdir -p "${connectors%/*}"
cat >"$connectors" <<'END'
class KVConnectorFactory:
    @staticmethod
    def register_connector(*names): assert names[1] == "ucmfs.vllm"
END
cat >"$vllm/platforms.py" <<'END'
class current_platform:
    @staticmethod
    def is_cpu(): return False
END
engine 0 "$mnt"
says OK 'plug-in: the tier "ucmfs", connectors and, on a CPU, sparse attention are known'
VLLM_PLUGINS=other && export VLLM_PLUGINS
engine 0 "$mnt"
says WARN 'plug-in: no tier .*: .VLLM_PLUGINS leaves ucmfs out; .*; mend: .*add ucmfs'
VLLM_PLUGINS=other,ucmfs
engine 0 "$mnt"
says OK 'plug-in: '
echo 'raise ImportError("half installed")' >"$work/lib/ucmfs/vllm/plugin.py"
engine 0 "$mnt"
says WARN 'plug-in: no tier .*: ImportError: half installed; '
unset VLLM_PLUGINS

echo 'nothing of that name' >"$hashing"
engine 1 "$mnt"
says FAIL 'hash seed: vLLM 0.32.0 makes a new one .*; mend: .*HASHSEED=0'
PYTHONHASHSEED=7 && export PYTHONHASHSEED
engine 0 "$mnt"
says OK 'hash seed: PYTHONHASHSEED=7'
PYTHONHASHSEED=random
engine 0 "$mnt"
says WARN 'hash seed: PYTHONHASHSEED=random'
unset PYTHONHASHSEED
rm "$hashing"
engine 0 "$mnt"
says WARN 'hash seed: it is not known how vLLM 0.32.0'
echo '    kv_load_failure_policy: str = "recompute"' >"$transfer"
echo 'DEFAULT_NONE_HASH_SEED = "fixed"' >"$hashing"
echo '__version__ = "0.30.2"' >"$vllm/__init__.py"
echo 'def crc32c(data): raise ImportError("no libucm.so.0")' \
	>"$work/lib/ucmfs/hash.py"
engine 1 "$mnt"
says WARN 'vllm: 0.30.2; .* for 0.31 to 0.33'
says OK 'load failures: '
says FAIL 'ucmfs: the Python package finds no libucm: ImportError: no libucm'
echo '__version__ = "0.0.1"' >"$work/lib/ucmfs/__init__.py"
echo '__version__ = "0.34.0rc1"' >"$vllm/__init__.py"
engine 1 "$mnt"
says WARN 'vllm: 0.34.0rc1; '
says FAIL "ucmfs: the Python package is 0.0.1, ucm is $version"
rm -r "$work/lib/ucmfs"
echo 'raise OSError("libcuda.so.1: cannot open")' >"$vllm/__init__.py"
engine 1 "$mnt"
says WARN 'ucmfs: no Python package: ModuleNotFoundError.*; mend: make wheel'
says FAIL 'vllm: .*/python3.* cannot import it: OSError: libcuda.so.1'
echo 'import os; os.abort()' >"$vllm/__init__.py"
engine 1 "$mnt"
says FAIL 'vllm: .* cannot import it: it does not come back'

# one that hangs is ended, with what it has started
cat >"$work/venv/bin/python3" <<END
#!/bin/sh
echo \$\$ >$work/hangs
sleep 1000
END
engine 1 --patience 1 "$mnt"
says FAIL 'python3: it has not imported .* within 1 s; mend: --patience'
refused 'No such process' 'it is gone' kill -0 "$(cat "$work/hangs")"
rm "$work/venv/bin/python3"
engine 1
says FAIL 'python3: it does not run; mend: install it'
unset VIRTUAL_ENV
PATH=$work/none "$ucm" doctor -e vllm >"$work/said"
says FAIL 'python3: it does not run'
doctor 2 --engine sglang
check 'an engine that is not known' \
	grep -q "engine 'sglang': must be vllm; try" "$work/said"
doctor 2 --patience 0
do_umount
