#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ucm hash: the ids of a request, from every form of input, and one line with
# exit status 2 for whatever is wrong with the command line.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/tool.sh"
input=$work/tokens

meta=/models/test:2:torch.bfloat16:0
hash() {
	"$ucm" hash --meta $meta "$@"
}

seq 0 127 >"$work/tokens"
seq 0 1000 127000 >>"$work/tokens"
upstream='6a66ad547f645f820229b3e7237152cb 7cf1ba4bd3f940e93cb9ad8425e74252
b1353734e16ad779d6066cd15779219f 999f8447063c6c87f9f73834eef10d4e'
ids=$(printf '%s\n' "$upstream" | cut -d' ' -f1)

same 'the vectors of upstream UCM, for both ranks' "$upstream" \
	"$(hash --scheme ucm --block-size 128 --ranks all "$work/tokens")"
same 'a range of ranks' "$(printf '%s\n' "$upstream" | cut -d' ' -f2)" \
	"$(hash --scheme ucm --block-size 128 --ranks 1-1 "$work/tokens")"
same 'the rank of the meta' "$(printf '%s\n' "$upstream" | cut -d' ' -f2)" \
	"$("$ucm" hash --meta ${meta%0}1 --scheme ucm --block-size 128 \
		"$work/tokens")"
same 'with MLA all ranks have one id' "$(printf '%s\n' "$ids" | sed 's/.*/& &/')" \
	"$(hash --scheme ucm --block-size 128 --ranks all --mla "$work/tokens")"
same 'standard input' "$ids" \
	"$(hash --scheme ucm --block-size 128 <"$work/tokens")"
same 'a list with brackets and commas' "$ids" \
	"$(tr '\n' ',' <"$work/tokens" | sed 's/^/[/; s/,$/]/' |
		hash --scheme ucm --block-size 128 -)"
same 'paths' "$(printf '%s\n' "$ids" | sed 's,^\(..\).*,\1/&.bin,')" \
	"$(hash --scheme ucm --block-size 128 --paths "$work/tokens")"
same 'going on from a parent' "$(printf '%s\n' "$ids" | tail -n 1)" \
	"$(tail -n 128 "$work/tokens" | hash --scheme ucm --block-size 128 \
		--parent "$(printf '%s\n' "$ids" | head -n 1)@128")"
same 'only whole blocks' 5 "$(hash --block-size 50 "$work/tokens" | wc -l)"
same 'and the rest, if asked' 6 \
	"$(hash --block-size 50 --partial "$work/tokens" | wc -l)"
same 'no tokens, no ids' '' "$(hash /dev/null)"
for option in '--salt s' '--lora l' "--item $(printf %064d 1)@3+2"; do
	# shellcheck disable=SC2086
	[ "$(hash "$work/tokens")" != "$(hash $option "$work/tokens")" ] ||
		same "$option makes a difference" 'other ids' 'the same'
done

if ! command -v perl >/dev/null; then
	echo 'SKIP: int32, int64 and the bytes that are explained: needs perl'
else
	perl -ne 'print pack("l<", $_)' "$work/tokens" >"$work/int32"
	perl -ne 'print pack("q<", $_)' "$work/tokens" >"$work/int64"
	for format in int32 int64; do
		same "$format" "$ids" "$(hash --scheme ucm --block-size 128 \
			--format $format "$work/$format")"
	done
fi

# What is shown has the digest that is told; od and md5sum know nothing of us.
hash --scheme ucm --block-size 128 --explain "$work/tokens" >"$work/explained"
same 'explained ids' "$ids" \
	"$(sed -n 's/^  = //p' "$work/explained" | tail -n 2)"
if command -v perl >/dev/null; then
	same 'explained bytes' "$(printf '%s\n' "$ids" | tail -n 1)" "$(
		sed -n '/^block 1/,$s/^  [0-9a-f]\{6\}  \([0-9a-f ]*\)  |.*/\1/p' \
			"$work/explained" |
			perl -ne 'print pack("H2", $_) for split' |
			md5sum | cut -d' ' -f1)"
fi

space=$(printf %064d 9)
printf '%064d %064d\n' 1 2 >"$work/hashes"
same 'hashes of the engine' 2 \
	"$("$ucm" hash --scheme external --space "$space" "$work/hashes" |
		sort -u | wc -l)"
same 'no hashes, no ids' '0 ' "$(
	"$ucm" hash --scheme external --space "$space" </dev/null
	echo "$? ")"

refused 2 'no command'
refused 2 "no command 'hsah'" hsah
refused 2 'unknown option --bogus' hash --bogus
refused 2 '--scheme: no value' hash --scheme
refused 2 "--scheme 'md5'" hash --scheme md5
refused 2 "--block-size '0'" hash --meta $meta --block-size 0
refused 2 "--block-size '1048577'" hash --meta $meta --block-size 1048577
refused 2 "--meta 'a:b'" hash --meta a:b
refused 2 "--meta 'a:0:b:0'" hash --meta a:0:b:0
refused 2 'rank' hash --meta a:1:b:1
refused 2 'needs --meta' hash --scheme ucm
refused 2 'needs --space' hash --scheme external
refused 2 'salt' hash --scheme ucm --meta $meta --salt s
refused 2 "--ranks '1-0'" hash --meta $meta --ranks 1-0
refused 2 '--ranks' hash --meta $meta --ranks 0-2
refused 2 'no ranks' hash --scheme prefix --meta $meta --ranks all
refused 2 "--parent 'ab@16'" hash --meta $meta --parent ab@16
refused 2 'parent' hash --meta $meta --parent "$(printf %032d 1)@17"
refused 2 'parent' hash --scheme prefix --parent "$(printf %032d 1)@16"
refused 2 "--item 'x'" hash --meta $meta --item x
refused 2 'items' hash --meta $meta --item "$space@3+0"
refused 2 "--lora 'a=b'" hash --meta $meta --lora a=b
refused 2 "--space '12'" hash --space 12
refused 2 "--group '-1'" hash --group -1
refused 2 "--format 'int16'" hash --format int16
refused 2 'too many arguments: b' hash a b
refused 1 'No such file' hash --meta $meta "$work/none"
refused 1 'Is a directory' hash --meta $meta "$work"
echo '1 2 -3' >"$work/negative"
refused 1 'token 2 is -3' hash --meta $meta "$work/negative"
echo '1 2 x' >"$work/word"
refused 1 'byte 4' hash --meta $meta "$work/word"
refused 1 'byte' hash --meta $meta --format int64 "$work/word"
refused 1 'hash 0' hash --scheme external --space "$space" "$work/word"

"$ucm" --help | grep -q 'hash ' || same '--help' 'hash' 'no hash'
"$ucm" hash --help | grep -q -- '--scheme' || same 'hash --help' '--scheme' ''
exit $failed
