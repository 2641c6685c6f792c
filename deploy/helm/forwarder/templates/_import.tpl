{{/* The pod of a migration's shard. A Job's can't change once it is there. */}}
{{- define "forwarder.import.pod" -}}
{{- $migration := .Values.migration -}}
{{- $name := include "forwarder.import.fullname" . -}}
metadata:
  labels:
    {{- include "forwarder.import.selector" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/config: {{ include "forwarder.import.config" . | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "forwarder.serviceAccount" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  restartPolicy: Never
  terminationGracePeriodSeconds: 45
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  containers:
    - name: import
      image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        - import
        {{- toYaml $migration.args | nindent 8 }}
        - --shard
        - $(JOB_COMPLETION_INDEX)/{{ $migration.shards }}
        - --yes
      env:
        - name: FORWARDER_IMPORT__API_KEY_FILE
          value: /etc/forwarder-import/api-key
        {{- with include "forwarder.upstream.env" . }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- with .Values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with .Values.envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $migration.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        readOnlyRootFilesystem: true
        allowPrivilegeEscalation: false
        capabilities:
          drop: [ALL]
      volumeMounts:
        - name: state
          mountPath: /var/lib/forwarder
        - name: config
          mountPath: /etc/forwarder
          readOnly: true
        - name: keys
          mountPath: /etc/forwarder-import
          readOnly: true
        {{- if $migration.source.claim }}
        - name: export
          mountPath: /export
          readOnly: true
        {{- end }}
        {{- if .Values.secrets.ca.name }}
        - name: ca
          mountPath: /etc/forwarder-ca
          readOnly: true
        {{- end }}
  volumes:
    - name: state
      persistentVolumeClaim:
        claimName: {{ $migration.state.existingClaim | default $name }}
    - name: config
      configMap:
        name: {{ $name }}
    - name: keys
      secret:
        secretName: {{ $migration.secret }}
        defaultMode: 0440
    {{- with $migration.source.claim }}
    - name: export
      persistentVolumeClaim:
        claimName: {{ . }}
        readOnly: true
    {{- end }}
    {{- with .Values.secrets.ca.name }}
    - name: ca
      secret:
        secretName: {{ . }}
        defaultMode: 0440
    {{- end }}
  {{- with $migration.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $migration.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
