{{- /* Values of older charts: where each is now, or "gone", why, and what to do instead. The schema lets these names through, so that the words here are what people read. */ -}}
{{- define "agent.oldNames" -}}
admission.waitTimeout: "gone: the container waits 60s, and the kubelet starts it again"
affinity: agent.affinity
appArmorProfile: agent.appArmorProfile
backend: redirection.backend
clusterDNS: agent.extraArgs, as --cluster-dns=...
cni: hooks.cni.mode
cniBinDir: hooks.cni.binDir
cniConfDir: hooks.cni.confDir
cniExcludeNamespaces: hooks.cni.excludeNamespaces
cniFailOpen: hooks.cni.failOpen
cniPluginSource: "gone: the image has the plugin at one place"
cniSocket: "gone: it is always /var/run/istio-pod-network-controller/cni.sock"
cniStatusNeedsAgent: agent.extraArgs, as --cni-status-needs-agent=...
containerRuntime: runtime.name
envoyInboundPort: redirection.defaults.envoyInboundPort
envoyPort: redirection.defaults.envoyPort
envoyTunnelPort: redirection.defaults.envoyTunnelPort
excludeInboundPorts: redirection.defaults.excludeInboundPorts
excludeNamespaces: redirection.excludeNamespaces
excludeOutboundIPRanges: redirection.defaults.excludeOutboundIPRanges
excludeOutboundPorts: redirection.defaults.excludeOutboundPorts
extraEnv: agent.extraEnv
extraVolumeMounts: "gone: add mounts by a post-renderer"
extraVolumes: "gone: add volumes by a post-renderer"
failOpen: hooks.failOpen
foreignRules: redirection.defaults.foreignRules
healthAddr: "gone: it is always a socket in the pod"
holdSeconds: redirection.defaults.holdSeconds
image.digest: image.tag, which takes a digest, too
imagePullSecrets: image.pullSecrets
inboundPorts: redirection.defaults.inboundPorts
includeInboundPorts: redirection.defaults.includeInboundPorts
includeOutboundIPRanges: redirection.defaults.includeOutboundIPRanges
includeOutboundPorts: redirection.defaults.includeOutboundPorts
inspectAddr: agent.extraArgs, as --inspect-addr=...
interceptionMode: redirection.defaults.interceptionMode
ipv6: redirection.defaults.ipv6
kubeletDir: pods.kubeletDir
logLevel: agent.logLevel
metrics.dashboard: monitoring.dashboard, with labels, annotations and namespace in its metadata
metrics.prometheusRule: monitoring.prometheusRule
metrics.secure: monitoring.secure
metrics.service: "gone: there is a Service unless monitoring.address is \"0\""
metrics.serviceMonitor: monitoring.serviceMonitor, with all but enabled and labels in its endpoint
metrics.tlsSecret: monitoring.tlsSecret
metricsAddr: monitoring.address
nameOverride: "gone: fullnameOverride names all objects"
nodeSelector: agent.nodeSelector
nri: hooks.nri.mode
nriIndex: agent.extraArgs, as --nri-index=...
nriName: "gone: it is always istio-pod-network-controller"
nriSocket: hooks.nri.socket
platform: kubernetesDistribution
podAnnotations: agent.podAnnotations
podLabels: agent.podLabels
podsFrom: pods.from
pprofAddr: agent.extraArgs, as --pprof-addr=...
priorityClassName: agent.priorityClassName
processFallback: runtime.processFallback
readAsNode: pods.readAsNode
resourceQuota: "agent.priorityQuota: auto, false or a number of pods"
resources: agent.resources
runtimeEndpoint: runtime.endpoint
seLinuxOptions: agent.seLinuxOptions
select: redirection.select
sidecars: proxies, with the same names in it
startupTaint: hooks.startupTaint.enabled
startupTaintKey: hooks.startupTaint.key
terminationGracePeriodSeconds: "gone: it is always 45"
tolerations: agent.tolerations
unsupportedRuntimeHandlers: redirection.unsupportedRuntimeHandlers
updateStrategy: agent.updateStrategy
verifyInterval: agent.extraArgs, as --verify-interval=...
{{- end -}}

{{- /* One failure for all of them. */ -}}
{{- define "agent.checkNames" -}}
{{- $found := list -}}
{{- range $name, $now := include "agent.oldNames" . | fromYaml -}}
{{- $path := splitList "." $name -}}
{{- $in := len $path | eq 1 | ternary $.Values (get $.Values (first $path)) -}}
{{- if and (kindIs "map" $in) (hasKey $in (last $path)) }}{{ $found = append $found (printf "%s: %s%s" $name (hasPrefix "gone" $now | ternary "" "it is now ") $now) }}{{ end -}}
{{- end -}}
{{- with $found }}{{ fail (printf "values of an older chart:\n%s" (join "\n" .)) }}{{ end -}}
{{- end -}}
