{{/* The pod, the same for both modes but for where its events are. */}}
{{- define "forwarder.pod" -}}
metadata:
  labels:
    {{- include "forwarder.selector" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/config: {{ include "forwarder.config" . | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "forwarder.serviceAccount" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "forwarder.grace" . }}
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
    - name: forwarder
      image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [run, --config, /etc/forwarder/forwarder.yaml]
      env:
        - name: POD_NAME
          valueFrom:
            fieldRef:
              fieldPath: metadata.name
        - name: FORWARDER_SOURCES__HTTP__LISTEN
          value: "0.0.0.0:{{ .Values.ports.http }}"
        - name: FORWARDER_ADMIN__LISTEN
          value: "0.0.0.0:{{ .Values.ports.admin }}"
        {{- if .Values.secrets.apiKeys.name }}
        - name: FORWARDER_SOURCES__HTTP__API_KEYS_FILE
          value: /etc/forwarder-keys/{{ .Values.secrets.apiKeys.key }}
        {{- end }}
        {{- if .Values.secrets.tls.name }}
        - name: FORWARDER_SOURCES__HTTP__TLS__CERT_FILE
          value: /etc/forwarder-tls/tls.crt
        - name: FORWARDER_SOURCES__HTTP__TLS__KEY_FILE
          value: /etc/forwarder-tls/tls.key
        {{- end }}
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
      ports:
        - name: http
          containerPort: {{ .Values.ports.http }}
        - name: admin
          containerPort: {{ .Values.ports.admin }}
      startupProbe:
        httpGet: {path: /livez, port: admin}
        periodSeconds: 2
        failureThreshold: 150
      livenessProbe:
        httpGet: {path: /livez, port: admin}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        httpGet: {path: /readyz, port: admin}
        periodSeconds: 2
        timeoutSeconds: 2
        failureThreshold: 1
      {{- with .Values.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        readOnlyRootFilesystem: true
        allowPrivilegeEscalation: false
        capabilities:
          drop: [ALL]
      volumeMounts:
        - name: events
          mountPath: /var/lib/forwarder
        - name: config
          mountPath: /etc/forwarder
          readOnly: true
        {{- if .Values.secrets.apiKeys.name }}
        - name: keys
          mountPath: /etc/forwarder-keys
          readOnly: true
        {{- end }}
        {{- if .Values.secrets.tls.name }}
        - name: tls
          mountPath: /etc/forwarder-tls
          readOnly: true
        {{- end }}
        {{- if .Values.secrets.ca.name }}
        - name: ca
          mountPath: /etc/forwarder-ca
          readOnly: true
        {{- end }}
  volumes:
    - name: config
      configMap:
        name: {{ include "forwarder.fullname" . }}
    {{- if eq .Values.mode "deployment" }}
    - name: events
      emptyDir:
        sizeLimit: {{ .Values.emptyDir.sizeLimit }}
    {{- end }}
    {{- with .Values.secrets.apiKeys.name }}
    - name: keys
      secret:
        secretName: {{ . }}
        defaultMode: 0440
    {{- end }}
    {{- with .Values.secrets.tls.name }}
    - name: tls
      secret:
        secretName: {{ . }}
        defaultMode: 0440
    {{- end }}
    {{- with .Values.secrets.ca.name }}
    - name: ca
      secret:
        secretName: {{ . }}
        defaultMode: 0440
    {{- end }}
  topologySpreadConstraints:
    {{- if .Values.topologySpreadConstraints }}
    {{- toYaml .Values.topologySpreadConstraints | nindent 4 }}
    {{- else }}
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "forwarder.selector" . | nindent 10 }}
    {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
