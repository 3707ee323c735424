{{/* Names */}}
{{- define "duetime.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* At most 40 characters, so that what is put behind it fits a label. */}}
{{- define "duetime.fullname" -}}
{{- $name := include "duetime.name" . }}
{{- $full := .Values.fullnameOverride | default (contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name)) }}
{{- $full | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* The name of a relay's Deployment: root, relay */}}
{{- define "duetime.relayName" -}}
{{- printf "%s-relay-%s" (include "duetime.fullname" .root) .relay | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "duetime.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "duetime.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "duetime.chart" -}}
{{- printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Labels: "component" is node, relay, migration, test or a throw-away store. */}}
{{- define "duetime.selector" -}}
app.kubernetes.io/name: {{ include "duetime.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component | quote }}
{{- end }}

{{- define "duetime.labels" -}}
{{- $chart := dict "helm.sh/chart" (include "duetime.chart" .root) "app.kubernetes.io/version" .root.Chart.AppVersion "app.kubernetes.io/managed-by" .root.Release.Service }}
{{- merge (include "duetime.podLabels" . | fromYaml) $chart | toYaml }}
{{- end }}

{{/* Of pods: nothing that changes with the chart's version alone, which would restart them. Of equal keys the first counts: the selector's, the
object's own, those of all objects. */}}
{{- define "duetime.podLabels" -}}
{{- merge (include "duetime.selector" . | fromYaml) (.labels | default dict) .root.Values.commonLabels | toYaml }}
{{- end }}

{{/* metadata of an object: root, component, name; labels and annotations of its own */}}
{{- define "duetime.metadata" -}}
name: {{ .name | quote }}
namespace: {{ .root.Release.Namespace | quote }}
labels:
  {{- include "duetime.labels" . | nindent 2 }}
{{- $annotations := merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* image, with its digest or tag */}}
{{- define "duetime.image" -}}
{{- with .Values.image }}
{{- $name := empty .registry | ternary .repository (printf "%s/%s" .registry .repository) }}
{{- if .digest }}{{ $name }}@{{ .digest }}{{ else }}{{ $name }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* The stores as they are used: those of the values, or the throw-away ones. Each as JSON. */}}
{{- define "duetime.databases" -}}
{{- if .Values.tryIt.enabled }}
{{- list (dict "name" "main" "url" (printf "postgres://duetime:duetime@%s-try-postgresql:5432/duetime?sslmode=disable" (include "duetime.fullname" .))) | toJson }}
{{- else }}
{{- .Values.databases | toJson }}
{{- end }}
{{- end }}

{{/* What the secret of a database is called, in the chart's Secret and as a folder: index, database. Pods read the new ConfigMap while they still have
the former Secrets, so a name must not pass to another database when one above it goes. The first one always stays the first. */}}
{{- define "duetime.databaseSecret" -}}
{{- $index := index . 0 }}
{{- $database := index . 1 }}
{{- if eq (int $index) 0 }}database-0{{ else }}database-named-{{ $database.name | default "main" }}{{ end }}
{{- end }}

{{- define "duetime.amqp" -}}
{{- if .Values.tryIt.enabled }}
{{- dict "url" (printf "amqp://duetime:duetime@%s-try-rabbitmq:5672/%%2f" (include "duetime.fullname" .)) | toJson }}
{{- else }}
{{- .Values.amqp | toJson }}
{{- end }}
{{- end }}

{{/* Where the files of TLS to RabbitMQ are, by their keys in [amqp]; as JSON */}}
{{- define "duetime.amqpFiles" -}}
{{- $files := dict }}
{{- with .Values.amqp.tls }}
{{- if .existingSecret }}
{{- range $key, $of := dict "ca_file" .caKey "cert_file" .certKey "key_file" .keyKey }}
{{- if $of }}{{ $_ := set $files $key (printf "/etc/duetime/secrets/amqp-tls/%s" $of) }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- $files | toJson }}
{{- end }}

{{- define "duetime.etcdEndpoints" -}}
{{- if .Values.tryIt.enabled }}
{{- list (printf "http://%s-try-etcd:2379" (include "duetime.fullname" .)) | toJson }}
{{- else }}
{{- .Values.etcd.endpoints | toJson }}
{{- end }}
{{- end }}

{{- define "duetime.migrationsMode" -}}
{{- if and .Values.tryIt.enabled (eq .Values.migrations.mode "hook") }}job{{ else }}{{ .Values.migrations.mode }}{{ end }}
{{- end }}

{{/* One value in TOML. YAML's numbers come as floats, whole ones too. */}}
{{- define "duetime.toml" -}}
{{- if kindIs "string" . }}{{ toJson . }}
{{- else if kindIs "slice" . }}{{ toJson . }}
{{- else if kindIs "bool" . }}{{ . }}
{{- else if ne (float64 .) (float64 (int64 .)) }}{{ . }}
{{- else }}{{ int64 . }}
{{- end }}
{{- end }}

{{/* How the nodes are spoken to */}}
{{- define "duetime.scheme" -}}
{{- if .Values.tls.existingSecret }}https{{ else }}http{{ end }}
{{- end }}

{{/* The name of the Service, as the certificate of `tls` has it */}}
{{- define "duetime.host" -}}
{{ include "duetime.fullname" . }}.{{ .Release.Namespace }}.svc
{{- end }}

{{/* The configuration, without any secret */}}
{{- define "duetime.config" -}}
[etcd]
endpoints = {{ include "duetime.etcdEndpoints" . }}
prefix = {{ .Values.etcd.prefix | default (printf "/duetime/%s/%s" .Release.Namespace (include "duetime.fullname" .)) | toJson }}
lease_ttl_ms = {{ int64 .Values.etcd.leaseTtlMs }}
{{- with .Values.etcd }}
{{- if .username }}
username = {{ toJson .username }}
password_file = "/etc/duetime/secrets/etcd/password"
{{- end }}
{{- if .tls.existingSecret }}
{{- with .tls.caKey }}
ca_file = {{ printf "/etc/duetime/secrets/etcd-tls/%s" . | toJson }}
{{- end }}
{{- with .tls.certKey }}
cert_file = {{ printf "/etc/duetime/secrets/etcd-tls/%s" . | toJson }}
{{- end }}
{{- with .tls.keyKey }}
key_file = {{ printf "/etc/duetime/secrets/etcd-tls/%s" . | toJson }}
{{- end }}
{{- end }}
{{- end }}
{{- range $index, $database := include "duetime.databases" . | fromJsonArray }}

[[database]]
name = {{ .name | default "main" | toJson }}
url_file = "/etc/duetime/secrets/{{ include "duetime.databaseSecret" (list $index .) }}/url"
{{- with .shards }}
shards = {{ toJson . }}
{{- end }}
{{- with .maxConnections }}
max_connections = {{ int64 . }}
{{- end }}
{{- if .requireSynchronousStandby }}
require_synchronous_standby = true
{{- end }}
{{- end }}

[amqp]
url_file = "/etc/duetime/secrets/amqp/url"
{{- range $key, $file := include "duetime.amqpFiles" . | fromJson }}
{{ $key }} = {{ toJson $file }}
{{- end }}
{{- if not .Values.amqp.defaultDoor }}
default_door = false
{{- end }}
{{- range .Values.delayExchanges }}

[[delay_exchange]]
name = {{ toJson .name }}
type = {{ .type | default "topic" | toJson }}
deliver_to = {{ toJson .deliverTo }}
{{- with .unroutable }}
unroutable = {{ toJson . }}
{{- end }}
{{- end }}

[http]
listen = "0.0.0.0:8080"
{{- range $key, $value := .Values.config.http }}
{{ $key }} = {{ include "duetime.toml" $value }}
{{- end }}
{{- with .Values.tls }}
{{- if .existingSecret }}
cert_file = {{ printf "/etc/duetime/secrets/tls/%s" .certKey | toJson }}
key_file = {{ printf "/etc/duetime/secrets/tls/%s" .keyKey | toJson }}
{{- end }}
{{- end }}
{{- range .Values.auth.tokens }}

[[auth.token]]
name = {{ toJson .name }}
role = {{ toJson .role }}
{{- with .queues }}
queues = {{ toJson . }}
{{- end }}
{{- with .sha256 }}
sha256 = {{ toJson . }}
{{- end }}
{{- with .limits }}

[auth.token.limits]
{{- range $name, $most := . }}
{{ $name }} = {{ int64 $most }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.auth.oidc }}
{{- if .issuer }}

[auth.oidc]
issuer = {{ toJson .issuer }}
client_id = {{ toJson .clientId }}
client_secret_file = "/etc/duetime/secrets/oidc/client-secret"
redirect_url = {{ toJson .redirectUrl }}
{{- with .scopes }}
scopes = {{ toJson . }}
{{- end }}
roles_claim = {{ toJson .rolesClaim }}
{{- range .roles }}

[[auth.oidc.role]]
value = {{ toJson .value }}
role = {{ toJson .role }}
{{- with .queues }}
queues = {{ toJson . }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- range $section := list "cluster" "audit" "console" "scheduler" "queues" "telemetry" }}
{{- with index $.Values.config $section }}

[{{ $section }}]
{{- range $key, $value := . }}
{{ $key }} = {{ include "duetime.toml" $value }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The secrets that stand in the values, by file. Empty when all are in Secrets of yours. */}}
{{- define "duetime.secrets" -}}
{{- range $index, $database := include "duetime.databases" . | fromJsonArray }}
{{- if not .existingSecret }}
{{ include "duetime.databaseSecret" (list $index .) }}: {{ .url | toString | b64enc }}
{{- end }}
{{- end }}
{{- with include "duetime.amqp" . | fromJson }}
{{- if not .existingSecret }}
amqp: {{ .url | toString | b64enc }}
{{- end }}
{{- end }}
{{- with .Values.etcd }}
{{- if and .username (not .existingSecret) }}
etcd: {{ .password | toString | b64enc }}
{{- end }}
{{- end }}
{{- end }}

{{/* One source of a projected volume: root, existingSecret, existingSecretKey, own (key in the chart's Secret), secrets (its name), path */}}
{{- define "duetime.source" -}}
- secret:
    name: {{ .existingSecret | default .secrets | quote }}
    items:
      - key: {{ empty .existingSecret | ternary .own (.existingSecretKey | default .key) | quote }}
        path: {{ .path }}
{{- end }}

{{/* Volumes with configuration and secrets: root, config and secrets (names of the objects they come from) */}}
{{- define "duetime.volumes" -}}
- name: config
  configMap:
    name: {{ .config | quote }}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      {{- range $index, $database := include "duetime.databases" .root | fromJsonArray }}
      {{- $own := include "duetime.databaseSecret" (list $index .) }}
      {{- include "duetime.source" (dict "existingSecret" (.existingSecret | default "") "existingSecretKey" .existingSecretKey "key" "url" "secrets" $.secrets "own" $own "path" (printf "%s/url" $own)) | nindent 6 }}
      {{- end }}
      {{- include "duetime.amqpSource" . | nindent 6 }}
      {{- with .root.Values.etcd }}
      {{- if .username }}
      {{- include "duetime.source" (dict "existingSecret" .existingSecret "existingSecretKey" .existingSecretKey "key" "password" "secrets" $.secrets "own" "etcd" "path" "etcd/password") | nindent 6 }}
      {{- end }}
      {{- if .tls.existingSecret }}
      - secret:
          name: {{ .tls.existingSecret | quote }}
          items:
            {{- range compact (list .tls.caKey .tls.certKey .tls.keyKey) }}
            - key: {{ . | quote }}
              path: etcd-tls/{{ . }}
            {{- end }}
      {{- end }}
      {{- end }}
      {{- with .root.Values.tls }}
      {{- if .existingSecret }}
      - secret:
          name: {{ .existingSecret | quote }}
          items:
            {{- range list .certKey .keyKey }}
            - key: {{ . | quote }}
              path: tls/{{ . }}
            {{- end }}
      {{- end }}
      {{- end }}
      {{- with .root.Values.auth.oidc }}
      {{- if .issuer }}
      {{- include "duetime.source" (dict "existingSecret" .existingSecret "existingSecretKey" .existingSecretKey "path" "oidc/client-secret") | nindent 6 }}
      {{- end }}
      {{- end }}
{{- include "duetime.caVolume" .root }}
{{- end }}

{{- define "duetime.amqpSource" -}}
{{- $amqp := include "duetime.amqp" .root | fromJson }}
{{- include "duetime.source" (dict "existingSecret" ($amqp.existingSecret | default "") "existingSecretKey" $amqp.existingSecretKey "key" "url" "secrets" .secrets "own" "amqp" "path" "amqp/url") }}
{{- with .root.Values.amqp.tls }}
{{- if .existingSecret }}
- secret:
    name: {{ .existingSecret | quote }}
    items:
      {{- range compact (list .caKey .certKey .keyKey) }}
      - key: {{ . | quote }}
        path: amqp-tls/{{ . }}
      {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "duetime.caVolume" -}}
{{- with .Values.caBundle }}
{{- if .existingConfigMap }}
- name: ca
  configMap:
    name: {{ .existingConfigMap | quote }}
    items:
      - key: {{ .key | quote }}
        path: ca.crt
{{- end }}
{{- end }}
{{- end }}

{{- define "duetime.caMount" -}}
{{- if .Values.caBundle.existingConfigMap }}
- name: ca
  mountPath: /etc/duetime/ca
  readOnly: true
{{- end }}
{{- end }}

{{- define "duetime.caEnv" -}}
{{- if .Values.caBundle.existingConfigMap }}
- name: SSL_CERT_FILE
  value: /etc/duetime/ca/ca.crt
{{- end }}
{{- end }}

{{- define "duetime.mounts" -}}
- name: config
  mountPath: /etc/duetime/config
  readOnly: true
- name: secrets
  mountPath: /etc/duetime/secrets
  readOnly: true
{{- include "duetime.caMount" . }}
{{- end }}

{{/* Variables of everything that reads the whole configuration */}}
{{- define "duetime.env" -}}
- name: DUETIME_CONFIG
  value: /etc/duetime/config/duetime.toml
{{- include "duetime.caEnv" . }}
{{- range $index, $token := .Values.auth.tokens }}
{{- if .existingSecret }}
- name: DUETIME_AUTH__TOKEN__{{ $index }}__SHA256
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret | quote }}
      key: {{ .existingSecretKey | default "sha256" | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* What rolls the pods when it changes: all but what a running node takes over from the ConfigMap by itself. Secrets of yours are not seen: restart
the nodes after changing one. */}}
{{- define "duetime.checksums" -}}
{{- $fixed := deepCopy .Values }}
{{- $_ := set $fixed "delayExchanges" list }}
{{- with $fixed.config.telemetry }}
{{- $_ := unset . "log" }}
{{- end }}
{{- /* Variables belong to tokens by number, and a running process keeps its own. */}}
{{- $bound := list }}
{{- range $fixed.auth.tokens }}
{{- if .existingSecret }}{{ $bound = append $bound . }}{{ end }}
{{- end }}
{{- $_ := set $fixed.auth "tokens" $bound -}}
checksum/config: {{ include "duetime.config" (merge (dict "Values" $fixed) (omit . "Values")) | sha256sum }}
{{- with include "duetime.secrets" . }}
checksum/secrets: {{ . | sha256sum }}
{{- end }}
{{- end }}

{{/* The probes of a node. One without settings is left out: `livenessProbe: null` in the values. */}}
{{- define "duetime.probes" -}}
{{- range $name, $path := dict "startupProbe" "/healthz" "livenessProbe" "/healthz" "readinessProbe" "/readyz" }}
{{- with index $.Values $name }}
{{ $name }}:
  httpGet:
    path: {{ $path }}
    port: http
    {{- if $.Values.tls.existingSecret }}
    scheme: HTTPS
    {{- end }}
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* What all pods have in common */}}
{{- define "duetime.pod" -}}
automountServiceAccountToken: false
# The variables of Services begin with the Service's name, and so might Duetime's own.
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- with .Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The first lines of a container that runs Duetime: root, and an image where it is another one */}}
{{- define "duetime.container" -}}
image: {{ .image | default (include "duetime.image" .root) }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
{{- with .root.Values.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
