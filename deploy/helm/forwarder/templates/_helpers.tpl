{{/* The release's name, or what stands for it; what the StatefulSet appends to it stays below a name's limit. */}}
{{- define "forwarder.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains "forwarder" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-forwarder" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "forwarder.selector" -}}
app.kubernetes.io/name: forwarder
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "forwarder.labels" -}}
{{ include "forwarder.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "forwarder.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "forwarder.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end }}

{{/* The configuration file. Addresses and files of Secrets are the chart's, and come by the environment, which goes first. */}}
{{- define "forwarder.config" -}}
{{- $_ := required "config.upstream.url is needed: the address of the service, such as https://us.i.example.com" .Values.config.upstream.url -}}
{{- if and (eq .Values.mode "statefulset") (ne (dig "buffer" "kind" "memory" .Values.config) "disk") (not (include "forwarder.kafka" .)) -}}
{{- fail "mode: statefulset is for config.buffer.kind: disk; with a buffer in memory set mode: deployment" -}}
{{- end -}}
{{- include "forwarder.members" . -}}
{{- include "forwarder.room" . -}}
{{- toYaml .Values.config -}}
{{- end }}

{{/* Whether topics are read: not empty if so. */}}
{{- define "forwarder.kafka" -}}
{{- if dig "sources" "kafka" list .Values.config -}}yes{{- end -}}
{{- end }}

{{/* Names with commas between, of a list or of a text that has them already. */}}
{{- define "forwarder.commas" -}}
{{- if kindIs "slice" . -}}{{ join "," . }}{{- else -}}{{ toString . | replace " " "" }}{{- end -}}
{{- end }}

{{/* Static members of a group need a name each, which a pod keeps when it is replaced. */}}
{{- define "forwarder.members" -}}
{{- $several := or .Values.autoscaling.enabled (gt (int .Values.replicas) 1) -}}
{{- range $number, $cluster := dig "sources" "kafka" list .Values.config -}}
{{- with $cluster.group_instance_id -}}
{{- if eq $.Values.mode "deployment" -}}
{{- fail (printf "config.sources.kafka[%d].group_instance_id needs mode: statefulset: a pod of a Deployment gets another name each time" $number) -}}
{{- else if and $several (not (contains "${POD_NAME}" .)) -}}
{{- fail (printf "config.sources.kafka[%d].group_instance_id (%s) would be that of every pod: set it to ${POD_NAME}" $number .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* What is scaled by a lag has to have one, and nothing that the end of a pod leaves behind. */}}
{{- define "forwarder.scalable" -}}
{{- if not (include "forwarder.kafka" .) -}}
{{- fail "autoscaling.enabled needs config.sources.kafka: pods are scaled by the lag of its group" -}}
{{- end -}}
{{- if gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas) -}}
{{- fail "autoscaling.minReplicas is more than autoscaling.maxReplicas" -}}
{{- end -}}
{{- range $number, $cluster := .Values.config.sources.kafka -}}
{{- if eq ($cluster.commit | default "delivered") "disk" -}}
{{- fail (printf "config.sources.kafka[%d].commit: disk can't be scaled: a pod that is removed would keep its events on its volume" $number) -}}
{{- end -}}
{{- if contains "${" (printf "%v %v" $cluster.bootstrap_servers $cluster.group_id) -}}
{{- fail (printf "config.sources.kafka[%d]: KEDA needs bootstrap_servers and group_id without variables" $number) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Bytes of a size as forwarder or Kubernetes writes it: 4GiB, 20MB, 5Gi, 5G, or a number. Empty for what the environment will say. */}}
{{- define "forwarder.bytes" -}}
{{- $text := ternary (printf "%.0f" (float64 .)) (toString .) (or (kindIs "float64" .) (kindIs "int64" .) (kindIs "int" .)) | replace " " "" | lower | trimSuffix "b" -}}
{{- if not (contains "${" $text) -}}
{{- if not (regexMatch "^[0-9]+([.][0-9]+)?([kmgt]i?)?$" $text) -}}
{{- fail (printf "%v is not a size: write it as 4GiB in config, as 5Gi for a volume" .) -}}
{{- end -}}
{{- $factors := dict "" 1.0 "k" 1e3 "m" 1e6 "g" 1e9 "t" 1e12 "ki" 1024.0 "mi" 1048576.0 "gi" 1073741824.0 "ti" 1099511627776.0 -}}
{{- mulf (regexFind "^[0-9.]+" $text | float64) (get $factors (regexFind "[a-z]*$" $text)) | int64 -}}
{{- end -}}
{{- end }}

{{/* The volume must hold the buffer and the dead letters, both full. The defaults are forwarder's. */}}
{{- define "forwarder.room" -}}
{{- $stateful := eq .Values.mode "statefulset" -}}
{{- $name := ternary "persistence.size" "emptyDir.sizeLimit" $stateful -}}
{{- $volume := ternary .Values.persistence.size .Values.emptyDir.sizeLimit $stateful -}}
{{- $disk := eq (dig "buffer" "kind" "memory" .Values.config) "disk" -}}
{{- $buffer := ternary ((.Values.config.buffer | default dict).max_bytes | default "1GiB") "0" $disk -}}
{{- $letters := (.Values.config.dead_letters | default dict).max_bytes | default (ternary "256MiB" "16MiB" $disk) -}}
{{- $bytes := list (include "forwarder.bytes" $volume) (include "forwarder.bytes" $buffer) (include "forwarder.bytes" $letters) -}}
{{- if not (has "" $bytes) -}}
{{- $needed := add (index $bytes 1 | int64) (index $bytes 2 | int64) -}}
{{- if lt (index $bytes 0 | int64) $needed -}}
{{- fail (printf "%s (%v) can't hold config.buffer.max_bytes (%v) and config.dead_letters.max_bytes (%v) together: make it %dMi or larger, or lower them" $name $volume (ternary $buffer "in memory" $disk) $letters (div (add $needed 1048575) 1048576)) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Pods that read the nodes' logs: no Service for senders leads to them, so they have a name of their own. */}}
{{- define "forwarder.logs.selector" -}}
app.kubernetes.io/name: forwarder-logs
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "forwarder.logs.labels" -}}
{{ include "forwarder.logs.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The configuration file of the nodes. Where it names no upstream, that of `config`. */}}
{{- define "forwarder.logs.config" -}}
{{- if not (dig "sources" "logs" list .Values.logs.config) -}}
{{- fail "logs.config.sources.logs is needed: what to read on the nodes, and what becomes of it" -}}
{{- end -}}
{{- toYaml (merge (deepCopy .Values.logs.config) (dict "upstream" (deepCopy .Values.config.upstream))) -}}
{{- end }}

{{/* A migration's name, to which the Job appends digits, and its pods their indexes. */}}
{{- define "forwarder.import.fullname" -}}
{{- printf "%s-import" (include "forwarder.fullname" . | trunc 40 | trimSuffix "-") -}}
{{- end }}

{{/* The Job has another name for other values, for its pods can't change; it resumes what the one before has done. */}}
{{- define "forwarder.import.job" -}}
{{- printf "%s-%s" (include "forwarder.import.fullname" .) (include "forwarder.import.pod" . | sha256sum | trunc 6) -}}
{{- end }}

{{- define "forwarder.import.selector" -}}
app.kubernetes.io/name: forwarder-import
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "forwarder.import.labels" -}}
{{ include "forwarder.import.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* A migration's configuration file. Where it names no upstream, that of `config`. */}}
{{- define "forwarder.import.config" -}}
{{- if not .Values.migration.args -}}
{{- fail "migration.args is needed: the format, and what to read, such as [mixpanel, /export]" -}}
{{- end -}}
{{- if not .Values.migration.secret -}}
{{- fail "migration.secret is needed: a Secret whose entry api-key is the project key" -}}
{{- end -}}
{{- range .Values.migration.args -}}
{{- if hasPrefix "--shard" . -}}
{{- fail "migration.args has --shard, which the chart adds: set migration.shards" -}}
{{- end -}}
{{- end -}}
{{- toYaml (merge (deepCopy .Values.migration.config) (dict "upstream" (deepCopy .Values.config.upstream))) -}}
{{- end }}

{{/* The way to the service, by the environment: authorities to trust, and a proxy. */}}
{{- define "forwarder.upstream.env" -}}
{{- if .Values.secrets.ca.name -}}
- name: FORWARDER_UPSTREAM__CA_FILE
  value: /etc/forwarder-ca/{{ .Values.secrets.ca.key }}
{{- end }}
{{- with .Values.secrets.proxy }}
{{- if .name }}
- name: FORWARDER_UPSTREAM__PROXY
  valueFrom:
    secretKeyRef:
      name: {{ .name }}
      key: {{ .key }}
{{- end }}
{{- end }}
{{- end }}

{{/* Seconds, rounded up, of a time as forwarder writes it: 500ms, 30s, 5m, 1h, 1d, or 0. */}}
{{- define "forwarder.seconds" -}}
{{- $text := . | toString | replace " " "" -}}
{{- if eq $text "0" -}}0
{{- else if not (regexMatch "^[0-9]+([.][0-9]+)?(ms|s|m|h|d)$" $text) -}}
{{- fail (printf "%q is not a time: write it as 500ms, 30s, 5m or 1h" $text) -}}
{{- else -}}
{{- $factor := get (dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 "d" 86400.0) (regexFind "[a-z]+$" $text) -}}
{{- mulf (regexFind "^[0-9.]+" $text | float64) $factor | ceil | int -}}
{{- end -}}
{{- end }}

{{/* The grace period: forwarder's own stop, and 15 seconds more; what is set must hold it. */}}
{{- define "forwarder.grace" -}}
{{- include "forwarder.graceOf" (dict "config" .Values.config "given" .Values.terminationGracePeriodSeconds) -}}
{{- end }}

{{/* The same for any configuration (`config`) and what is set (`given`). The defaults are forwarder's. */}}
{{- define "forwarder.graceOf" -}}
{{- $delay := include "forwarder.seconds" (dig "shutdown" "delay" "0s" .config) | int -}}
{{- $drain := include "forwarder.seconds" (dig "shutdown" "drain_timeout" "25s" .config) | int -}}
{{- $leaving := ternary 6 0 (gt (len (dig "sources" "kafka" list .config)) 0) -}}
{{- $needed := add $delay $drain $leaving -}}
{{- $given := .given -}}
{{- if and $given (le (int64 $given) $needed) -}}
{{- fail (printf "terminationGracePeriodSeconds (%v) must be more than config.shutdown.delay and config.shutdown.drain_timeout together%s (%d s)" $given (ternary ", and 6 s to leave Kafka's groups" "" (gt $leaving 0)) $needed) -}}
{{- end -}}
{{- $given | default (add $needed 15) -}}
{{- end }}
