{{/* What cannot work, all of it at once, each as a sentence that begins with its key. What concerns one value alone is in values.schema.json. */}}
{{- define "duetime.refusals" -}}
{{- $wrong := list }}
{{- with .Values }}
{{- if .tryIt.enabled }}
  {{- if .databases }}{{ $wrong = append $wrong "databases: is set, and so is tryIt.enabled; take one of them away" }}{{ end }}
  {{- if or .amqp.url .amqp.existingSecret .amqp.tls.existingSecret }}{{ $wrong = append $wrong "amqp: is set, and so is tryIt.enabled; take one of them away" }}{{ end }}
  {{- if .etcd.endpoints }}{{ $wrong = append $wrong "etcd.endpoints: is set, and so is tryIt.enabled; take one of them away" }}{{ end }}
{{- else }}
  {{- if not .databases }}{{ $wrong = append $wrong "databases: is empty; name at least one: {name: main, existingSecret: <Secret with the key url>}" }}{{ end }}
  {{- if not (or .amqp.url .amqp.existingSecret) }}{{ $wrong = append $wrong "amqp.existingSecret: is missing; name a Secret that holds RabbitMQ's URL under the key url, or set amqp.url" }}{{ end }}
  {{- if not .etcd.endpoints }}{{ $wrong = append $wrong "etcd.endpoints: is empty; name at least one, such as http://etcd:2379" }}{{ end }}
{{- end }}
{{- if and .amqp.url .amqp.existingSecret }}{{ $wrong = append $wrong "amqp.url: is set, and so is amqp.existingSecret; set one of them" }}{{ end }}

{{- with .amqp }}
  {{- if ne (empty .tls.certKey) (empty .tls.keyKey) }}{{ $wrong = append $wrong "amqp.tls.certKey: and amqp.tls.keyKey go together; set both or neither" }}{{ end }}
  {{- if and (or .tls.certKey .tls.keyKey) (not .tls.existingSecret) }}{{ $wrong = append $wrong "amqp.tls.existingSecret: is missing; amqp.tls.certKey is a key of it" }}{{ end }}
  {{- if and .tls.existingSecret (hasPrefix "amqp://" .url) }}{{ $wrong = append $wrong "amqp.tls.existingSecret: is set, but amqp.url begins with amqp://, which uses no certificates; write amqps://" }}{{ end }}
{{- end }}

{{- $names := list }}
{{- $urls := list }}
{{- $several := gt (len .databases) 1 }}
{{- range $index, $database := .databases }}
  {{- $key := printf "databases[%d]" $index }}
  {{- $name := .name | default "main" }}
  {{- if has $name $names }}{{ $wrong = append $wrong (printf "%s.name: is %q, the name of another database; give each a name of its own" $key $name) }}{{ end }}
  {{- $names = append $names $name }}
  {{- if and .url .existingSecret }}{{ $wrong = append $wrong (printf "%s.url: is set, and so is existingSecret; set one of them" $key) }}{{ end }}
  {{- if not (or .url .existingSecret) }}{{ $wrong = append $wrong (printf "%s.existingSecret: is missing; name a Secret that holds the URL under the key url, or set url" $key) }}{{ end }}
  {{- $place := .url | default (printf "%s/%s" .existingSecret (.existingSecretKey | default "url")) }}
  {{- if has $place $urls }}{{ $wrong = append $wrong (printf "%s: is the same as another database; each needs a PostgreSQL database of its own" $key) }}{{ end }}
  {{- $urls = append $urls $place }}
{{- end }}

{{- /* Each shard has exactly one database: ranges that do not overlap, as many shards as the last one's number says. */}}
{{- $ranges := list }}
{{- $count := 0 }}
{{- $end := 0 }}
{{- range $index, $database := .databases }}
  {{- if .shards }}
    {{- $first := splitList "-" .shards | first | int }}
    {{- $last := splitList "-" .shards | last | int }}
    {{- if gt $first $last }}{{ $wrong = append $wrong (printf "databases[%d].shards: is %q; its first shard is behind its last" $index .shards) }}{{ end }}
    {{- range $ranges }}
      {{- if and (le $first .last) (le .first $last) }}{{ $wrong = append $wrong (printf "databases[%d].shards: is %q and overlaps %q; each shard belongs to one database" $index $database.shards .text) }}{{ end }}
    {{- end }}
    {{- $ranges = append $ranges (dict "first" $first "last" $last "text" .shards) }}
    {{- $count = add $count (sub (add $last 1) $first) }}
    {{- $end = max $end (add $last 1) }}
  {{- end }}
{{- end }}
{{- if and $ranges (lt (int $count) (int $end)) }}{{ $wrong = append $wrong (printf "databases: their shards leave a gap; together they must cover 0 to %d; if the cluster exists already, leave `shards` out of every section" (sub $end 1)) }}{{ end }}
{{- with .config.cluster.shards }}
  {{- if and $ranges (ne (int .) (int $end)) }}{{ $wrong = append $wrong (printf "config.cluster.shards: is %d, but the ranges of the databases hold the shards up to %d; leave one of them out" (int .) (sub $end 1)) }}{{ end }}
{{- end }}

{{- with .etcd }}
  {{- if and .username (not (or .password .existingSecret)) }}{{ $wrong = append $wrong "etcd.username: is set without a password; set etcd.existingSecret or etcd.password" }}{{ end }}
  {{- if and (or .password .existingSecret) (not .username) }}{{ $wrong = append $wrong "etcd.username: is missing; there is a password" }}{{ end }}
  {{- if and .password .existingSecret }}{{ $wrong = append $wrong "etcd.password: is set, and so is etcd.existingSecret; set one of them" }}{{ end }}
  {{- if ne (empty .tls.certKey) (empty .tls.keyKey) }}{{ $wrong = append $wrong "etcd.tls.certKey: and etcd.tls.keyKey go together; set both or neither" }}{{ end }}
  {{- if and (or .tls.certKey .tls.keyKey) (not .tls.existingSecret) }}{{ $wrong = append $wrong "etcd.tls.existingSecret: is missing; etcd.tls.certKey is a key of it" }}{{ end }}
  {{- $plain := false }}
  {{- range .endpoints }}{{ if hasPrefix "http://" . }}{{ $plain = true }}{{ end }}{{ end }}
  {{- if and .tls.existingSecret $plain }}{{ $wrong = append $wrong "etcd.tls.existingSecret: is set, but an endpoint begins with http://, which uses no certificates; write https://" }}{{ end }}
{{- end }}

{{- if not .auth.tokens }}{{ $wrong = append $wrong "auth.tokens: is empty, and every client that reaches the Service would be admitted; name at least one: {name: ops, role: operator, sha256: <SHA-256 of the token>}" }}{{ end }}
{{- $names = list }}
{{- range $index, $token := .auth.tokens }}
  {{- $key := printf "auth.tokens[%d]" $index }}
  {{- if has .name $names }}{{ $wrong = append $wrong (printf "%s.name: is %q, the name of another token; give each a name of its own" $key .name) }}{{ end }}
  {{- $names = append $names .name }}
  {{- if and (eq .role "metrics") .queues }}{{ $wrong = append $wrong (printf "%s.queues: does not apply to the role metrics: the metrics name every queue" $key) }}{{ end }}
  {{- if eq (empty .sha256) (empty .existingSecret) }}{{ $wrong = append $wrong (printf "%s.sha256: or existingSecret must be set, but not both" $key) }}{{ end }}
{{- end }}

{{- with .auth.oidc }}
  {{- if .issuer }}
    {{- range list "clientId" "existingSecret" "redirectUrl" "roles" }}
      {{- if not (index $.Values.auth.oidc .) }}{{ $wrong = append $wrong (printf "auth.oidc.%s: is missing; auth.oidc.issuer needs it" .) }}{{ end }}
    {{- end }}
  {{- end }}
{{- end }}

{{- range $index, $exchange := .delayExchanges }}
  {{- if eq .name .deliverTo }}{{ $wrong = append $wrong (printf "delayExchanges[%d].deliverTo: is the delay exchange itself; messages would never leave it" $index) }}{{ end }}
{{- end }}

{{- with .config.scheduler }}
  {{- $horizon := .horizon_ms | default 10000 | int }}
  {{- if ge (.claim_ahead_ms | default 0 | int) $horizon }}{{ $wrong = append $wrong (printf "config.scheduler.claim_ahead_ms: is not less than config.scheduler.horizon_ms (%d)" $horizon) }}{{ end }}
  {{- $batch := .batch | default 500 | int }}
  {{- if lt (.window | default 10000 | int) $batch }}{{ $wrong = append $wrong (printf "config.scheduler.window: is less than config.scheduler.batch (%d); a whole batch must fit into it" $batch) }}{{ end }}
  {{- if lt (.heap_entries | default 1000000 | int) $batch }}{{ $wrong = append $wrong (printf "config.scheduler.heap_entries: is less than config.scheduler.batch (%d); a whole batch must fit into it" $batch) }}{{ end }}
{{- end }}

{{- $names = list }}
{{- $deployments := dict }}
{{- range $index, $relay := .relays }}
  {{- $key := printf "relays[%d]" $index }}
  {{- $deployment := include "duetime.relayName" (dict "root" $ "relay" .name) }}
  {{- $other := get $deployments $deployment }}
  {{- if and $other (ne $other .name) }}{{ $wrong = append $wrong (printf "%s.name: is %q, and its Deployment would be called %q, like the one of relay %q: names end after 63 characters; make these two differ earlier, or set a shorter fullnameOverride" $key .name $deployment $other) }}{{ end }}
  {{- $_ := set $deployments $deployment .name }}
  {{- if has .name $names }}{{ $wrong = append $wrong (printf "%s.name: is %q, the name of another relay; give each a name of its own" $key .name) }}{{ end }}
  {{- $names = append $names .name }}
  {{- if eq (empty .to) (empty .command) }}{{ $wrong = append $wrong (printf "%s.to: or command must be set, but not both" $key) }}{{ end }}
  {{- if and .command (not .image) }}{{ $wrong = append $wrong (printf "%s.image: is missing; Duetime's own image holds no program but Duetime: name one that holds `%s` and `duetime`" $key .command) }}{{ end }}
  {{- if and .command .existingSecret }}{{ $wrong = append $wrong (printf "%s.existingSecret: signs calls; a command has none" $key) }}{{ end }}
{{- end }}

{{- $full := include "duetime.fullname" $ }}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $full) }}{{ $wrong = append $wrong (printf "fullnameOverride: the Service would be called %q, which Kubernetes refuses; set a name of lower-case letters, digits and hyphens that begins with a letter" $full) }}{{ end }}
{{- if and .metrics.serviceMonitor.enabled (not .metrics.serviceMonitor.existingSecret) }}{{ $wrong = append $wrong "metrics.serviceMonitor.existingSecret: is missing; /metrics requires a token: name a Secret with one of role metrics" }}{{ end }}
{{- if and .ingress.enabled (not .ingress.hosts) }}{{ $wrong = append $wrong "ingress.hosts: is empty; name at least one host" }}{{ end }}
{{- /* A drain takes 46 s when every store is silent. */}}
{{- $stop := add 46 (int .preStopSleepSeconds) | int }}
{{- if lt (int .terminationGracePeriodSeconds) $stop }}{{ $wrong = append $wrong (printf "terminationGracePeriodSeconds: is %d, and a node needs up to %d s to stop: 46 s after preStopSleepSeconds" (int .terminationGracePeriodSeconds) $stop) }}{{ end }}
{{- end }}
{{- with $wrong }}
{{- fail (printf "these values are refused:\n  - %s" (join "\n  - " .)) }}
{{- end }}
{{- end }}
