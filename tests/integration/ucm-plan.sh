#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ucm plan: what models of all kinds take, tiers on a trace by figures that can be worked
# out by hand, and one line for whatever is wrong.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/tool.sh"
command=plan
config=$work/config.json
trace=$work/trace.jsonl

# value JSON-KEY: of $work/out
value() {
	sed -n "s/^ *\"$1\": \([^,]*\),*$/\1/p" "$work/out" | paste -sd' '
}

# Bytes of a token, and of a request of 10000: heads x size x (K and V) x 2 x layers.
models=0
while IFS='|' read -r name token request json; do
	echo "$json" >"$config"
	"$ucm" plan -c 10000 -r 1 -j "$config" >"$work/out" 2>&1 ||
		sed 's/^/  | /' "$work/out"
	same "$name: a token" "$token" "$(value token_bytes)"
	same "$name: a request" "$request" "$(value request_bytes)"
	models=$((models + 1))
done <<'EOF'
Llama 2 7B|524288|5242880000|{"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096}
Llama 3 70B|327680|3276800000|{"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192, "sliding_window": null}
GPT-2|36864|368640000|{"n_layer": 12, "n_head": 12, "n_embd": 768}
Falcon 7B|8192|81920000|{"num_hidden_layers": 32, "num_attention_heads": 71, "hidden_size": 4544, "multi_query": true}
ChatGLM3|28672|286720000|{"num_layers": 28, "num_attention_heads": 32, "multi_query_attention": true, "multi_query_group_num": 2, "kv_channels": 128, "hidden_size": 4096}
Qwen 2.5 7B|57344|573440000|{"num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 3584, "sliding_window": 131072, "use_sliding_window": false}
Mistral 7B 0.1|131072|536870912|{"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096, "sliding_window": 4096}
Gemma 2 9B|344064|2424963072|{"model_type": "gemma2", "num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "sliding_window": 4096}
Gemma 3 12B|393216|990904320|{"text_config": {"model_type": "gemma3_text", "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 8, "hidden_size": 3840, "sliding_window": 1024}}
Gemma 3 27B|507904|1255407616|{"text_config": {"num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "sliding_window": 1024, "sliding_window_pattern": 6}}
gpt-oss, 4 layers|8192|41484288|{"num_hidden_layers": 4, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]}
DeepSeek V3|70272|702720000|{"num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128}
DeepSeek V3.2|78324|783240000|{"num_hidden_layers": 61, "num_attention_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128}
Qwen3 Next|24576|245760000|{"num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "full_attention_interval": 4}
Jamba|16384|163840000|{"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096, "attn_layer_period": 8, "attn_layer_offset": 4}
Nemotron-H, 6 layers|8192|81920000|{"num_hidden_layers": 6, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "hybrid_override_pattern": "M-M*-*"}
EOF
same 'models' 16 $models

# fp8 halves it; a folder is its config.json
echo '{"num_hidden_layers": 61, "num_attention_heads": 128, "kv_lora_rank": 512,
	"qk_rope_head_dim": 64, "max_position_embeddings": 4096}' >"$config"
"$ucm" plan -e 1 -r 2 -b 64 -j "$work" >"$work/out"
same 'fp8' "$((61 * 576))" "$(value token_bytes)"
same 'a block' "$((64 * 61 * 576))" "$(value block_bytes)"
same 'of the longest text' "$((2 * 4096 * 61 * 576))" "$(value requests_bytes)"

# ---- 1 MiB a token: 16 MiB a block ----

echo '{"num_hidden_layers": 64, "num_attention_heads": 32, "head_dim": 128,
	"max_position_embeddings": 1024}' >"$config"
"$ucm" plan --rate 512 --bandwidth 1G -j "$config" >"$work/out"
same 'loaded as fast as computed' 536870912.0 "$(value break_even_bytes_per_second)"
same 'computed' 2.0 "$(value first_token_computed)"
same 'loaded' 1.0 "$(value first_token_loaded)"

# Four requests for the same two blocks, one for two others: 6 of 10 are found.
for request in 0:1 1:1 2:1 3:5 4:1; do
	id=${request#*:}
	echo "{\"timestamp\": ${request%:*}000, \"hash_ids\": [$id, $((id + 1))]}"
done | sed 's/ 0000/ 0/' >"$trace"
"$ucm" plan -t "$trace" --capacity 64M --rate 16 --bandwidth 16M --device 40M -j \
	--hit 60 "$config" >"$work/out"
same 'hit rates: none, of all by each policy, and as asked' \
	"0.0$(printf ' 0.59999999999999998%.0s' 1 2 3 4)" "$(value hit_rate)"
same 'policies' '"hazard" "lru" "hazard" "lru"' "$(value policy)"
for what in read:6 written:4; do
	same "${what%:*}: so many blocks in 5 s" "$((16 * 1048576 * ${what#*:} / 5))" \
		"$(value "${what%:*}_per_second" | cut -d' ' -f2 | cut -d. -f1)"
done
# 32 tokens computed; 19.2 of them loaded, and 12.8 computed
same 'first tokens' '2.0 2.0' "$(value first_token | cut -d' ' -f1,2)"
same 'disks' '0 2 2 2 2' "$(value devices)"
# a picture: text, and how high a rate of .6 stands in the panel, 180 from 0 to 60 %
"$ucm" plan -t "$trace" --capacity 64M,32M --rate 16 --bandwidth 16M --svg "$work/a.svg" \
	"$config" >"$work/drawn"
python3 - "$work/a.svg" >"$work/drawn" <<'END'
import sys
from xml.etree import ElementTree
root = ElementTree.parse(sys.argv[1]).getroot()
space = "{http://www.w3.org/2000/svg}"
print(*(each.text for each in root.iter(space + "text")), sep=" ")
print(*(each[0].text for each in root.iter(space + "circle")), sep=" ")
print(*(each.get("cy") for each in root.iter(space + "circle")))
END
same 'it has scales and a legend' 1 "$(grep -c \
	'^hazard lru hit rate 0 20 % 40 % 60 % 32M 64M capacity, bytes first token' "$work/drawn")"
same 'sizes in their order, and figures' 1 "$(grep -c \
	'^hazard, 32M: .* hazard, 64M: 60 % lru, 32M: .* lru, 64M: 60 % hazard, 32M: .*s$' "$work/drawn")"
same 'what is highest is at the top' 60.0 "$(sed -n 3p "$work/drawn" | cut -d' ' -f2)"
refused 2 '--svg and --trace-block need' --svg "$work/b.svg" "$config"

"$ucm" plan -t "$trace" --hit 61 "$config" >"$work/out"
same 'a rate that is not reached' 1 "$(grep -c '^a hit rate of 61 % cannot be reached' "$work/out")"
same 'all, and halves of it' 12 "$(awk '$1 == "CAPACITY" { on = 1 } on' "$work/out" | wc -l)"

# A sample of 20000 blocks, each asked for twice, with 10000 others between: half is found
# where 15000 have room, and nothing by lru where 5000 have.
awk 'BEGIN { for (i = 0; i < 25000; i++) {
	if (i < 20000) print "{\"timestamp\": " i ", \"hash_ids\": [" i "]}"
	if (i >= 5000) print "{\"timestamp\": " i ", \"hash_ids\": [" i - 5000 "]}" } }' >"$trace"
"$ucm" plan -t "$trace" --sample .2 --capacity 80000M,240000M -j "$config" >"$work/out"
check_near() {
	echo "$1 $2 $3" | awk '{ exit !($1 >= $2 - $3 && $1 <= $2 + $3) }' && return
	echo "FAIL: $1, must be $2, and no more than $3 off"
	failed=1
}
error=$(value hit_rate_error)
check_near "$error" .048 .002 # 3/sqrt(4000)
set -- $(value hit_rate)
same 'too small' 0.0 "$3"
check_near "$5" .5 "$error" # lru, with room for 15000
refused 1 '--sample 0.2: too little for a capacity of 16G, which is less than 300 blocks' \
	-t "$trace" --sample .2 --capacity 16G "$config"
refused 1 'no blocks in the sample' -t "$trace" --sample 1e-12 "$config"
refused 2 "'1.5'" -t "$trace" --sample 1.5 "$config"

# ---- what is wrong ----

refused 2 'no CONFIG'
refused 2 '--capacity, --hit, --sample, --svg and --trace-block need --trace' --hit 3 "$config"
refused 2 "'1G,0'" --trace x --capacity 1G,0 "$config"
refused 2 'from 1 to 100' --trace x --hit 101 "$config"
refused 1 'none/config.json: No such file' "$work/none/config.json"
refused 1 'trace: No such file' -t "$work/trace" "$config"
# broken 'text in the line' JSON
broken() {
	echo "$2" >"$config"
	refused 1 "$1" -c 1 "$config"
}
broken 'config.json: not a JSON object' '[]'
broken 'not a JSON object: ' '{'
broken 'no num_hidden_layers' '{}'
broken 'no num_attention_heads' '{"num_hidden_layers": 3}'
broken 'no head_dim or hidden_size' '{"num_hidden_layers": 3, "num_attention_heads": 4}'
broken 'num_hidden_layers is not a number' '{"num_hidden_layers": "3"}'
broken "layer_types: unknown layer type 'new_attention'" \
	'{"num_hidden_layers": 1, "layer_types": ["new_attention"]}'
for key in linear_attn_config:'{}' num_global_key_value_heads:4 attn_layer_indices:'[9]'; do
	broken "models with ${key%%:*} are not supported" \
		"{\"num_hidden_layers\": 30, \"${key%%:*}\": ${key#*:}}"
done
broken 'models of type minicpm3' '{"model_type": "minicpm3", "num_hidden_layers": 3}'
broken 'layer_types: 1 of 2 layers' \
	'{"num_hidden_layers": 2, "layer_types": ["full_attention"]}'
broken 'no layer with K and V' '{"num_hidden_layers": 2, "num_attention_heads": 8,
	"head_dim": 8, "hybrid_override_pattern": "M-"}'
broken 'hidden_size 4 is no multiple of 8 heads' \
	'{"num_hidden_layers": 2, "num_attention_heads": 8, "hidden_size": 4}'
broken 'num_kv_shared_layers' '{"num_hidden_layers": 30, "num_kv_shared_layers": 10}'
broken 'no sliding_window' '{"num_hidden_layers": 1, "layer_types": ["sliding_attention"]}'
echo '{"num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 1}' >"$config"
refused 2 'does not say how long a text may be: --context' "$config"
exit $failed
