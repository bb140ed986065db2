#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# make html: each manual page and document has a page, the index leads to all of them,
# no link, anchor or picture leads nowhere, and no page is wider than a screen.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/python.sh"
start_test campaigns python3 python make mandoc
for each in python3 /usr/bin/python3 none; do
	"$each" -c 'import markdown' 2>/dev/null && break
done
[ "$each" != none ] || skip 'no Python here has python-markdown'

env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make -s -C "$top_builddir" html \
	html_dir="$work/html" >"$work/out" 2>&1
same 'it is built' 0 $? || cat "$work/out"
for page in "$top_srcdir"/man/*.[1-8]; do
	[ -s "$work/html/man/${page##*/}.html" ] || fail "no page of $page"
done
for page in "$top_srcdir"/doc/*.md; do
	page=${page##*/}
	[ -s "$work/html/doc/${page%.md}.html" ] || fail "no page of doc/$page"
done
cat >"$work/links.py" <<'END'
"""Prints broken links, then what contents.html does not lead to."""
import os
import sys
from html.parser import HTMLParser


class Page(HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.ids, self.links = set(), []
        with open(path, encoding="utf-8") as file:
            self.feed(file.read())

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name == "id":
                self.ids.add(value)
            elif name in ("href", "src"):
                self.links.append(value)


os.chdir(sys.argv[1])
pages = {os.path.normpath(os.path.join(folder, name))
         for folder, _, names in os.walk(".") for name in names
         if name.endswith(".html")}
parsed = {name: Page(name) for name in pages}
num = 0
for name, page in sorted(parsed.items()):
    for link in page.links:
        if ":" in link:
            continue
        num += 1
        path, _, anchor = link.partition("#")
        file = os.path.normpath(os.path.join(os.path.dirname(name), path)
                                ) if path else name
        if not os.path.exists(file):
            print(f"{name}: {link}: no such page")
        elif anchor and anchor not in parsed[file].ids:
            print(f"{name}: {link}: no such anchor")
reached = {link for link in parsed["contents.html"].links}
for name in sorted(pages - reached - {"contents.html"}):
    print(f"contents.html does not lead to {name}")
if num < 300:
    print(f"{num} links: too few to be all")
END
same 'no link is broken' '' "$("$python" "$work/links.py" "$work/html" 2>&1)"
for picture in "$top_srcdir"/doc/*.svg; do
	picture=${picture##*/}
	check "a picture: $picture" cmp "$top_srcdir/doc/$picture" "$work/html/doc/$picture"
	check 'and a page that shows it' grep -qrF "src=\"$picture\"" "$work/html/doc"
done

# all pages, in frames as wide as a telephone and as a screen
may_try 'widths' chromium || exit $failed
{
	echo '<!DOCTYPE html><body>'
	(cd "$work/html" && find . -name '*.html' ! -name wide.html) | while read -r page; do
		for width in 390 1280; do
			echo "<iframe style='border: 0; width: ${width}px' src='$page'></iframe>"
		done
	done
	cat <<'END'
<script>onload = () => {
	const frames = [...document.querySelectorAll("iframe")];
	const wide = frames.filter((f) =>
		f.contentDocument.documentElement.scrollWidth > f.clientWidth);
	document.body.textContent = `${frames.length} frames, too wide: ` +
		wide.map((f) => `${f.getAttribute("src")} at ${f.clientWidth}`);
}</script>
END
} >"$work/html/wide.html"
# as root, without a display, and with scripts that may look into frames of files
timeout 120 chromium --headless --no-sandbox --disable-gpu --disable-web-security \
	--user-data-dir="$work/chromium" --dump-dom "file://$work/html/wide.html" \
	>"$work/dom" 2>"$work/chromium.err"
same 'no page is too wide' "$(grep -c '<iframe' "$work/html/wide.html") frames, too wide: " \
	"$(sed -n 's,</body>.*,,; s/.*<body>//p' "$work/dom")"
exit $failed
