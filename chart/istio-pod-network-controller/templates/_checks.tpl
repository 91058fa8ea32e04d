{{- /* Values that this cluster cannot do. `auto` asks it, so that it never fails. */ -}}
{{- define "agent.checkCluster" -}}
{{- $v := .Values -}}
{{- $platforms := include "agent.platforms" . | fromYaml -}}
{{- $is := include "agent.platform" . -}}
{{- if not (hasKey $platforms $is) -}}
{{- fail (printf "kubernetesDistribution=%s: it is one of %s" $v.kubernetesDistribution (keys $platforms | sortAlpha | join ", ")) -}}
{{- end -}}
{{- if and (ne $is "openshift") (.Capabilities.APIVersions.Has "security.openshift.io/v1") -}}
{{- fail (printf "kubernetesDistribution=%s on what looks like OpenShift, which would admit no pod of the agent: set kubernetesDistribution=openshift" $v.kubernetesDistribution) -}}
{{- end -}}
{{- /* admission.enabled=false switches off what the policy of pods would add. */ -}}
{{- $prepares := ne (toString $v.admission.enabled) "false" -}}
{{- range list
  (list "admission.enabled=true" (eq (toString $v.admission.enabled) "true") "1.36" "MutatingAdmissionPolicy")
  (list "admission.waitContainer=true" (and $prepares $v.admission.waitContainer) "1.36" "MutatingAdmissionPolicy")
  (list "admission.requiredPlugins=true" (and $prepares $v.admission.requiredPlugins) "1.36" "MutatingAdmissionPolicy")
  (list "admission.restrictAgent=true" (eq (toString $v.admission.restrictAgent) "true") "1.30" "ValidatingAdmissionPolicy")
  (list "admission.allowOptOut=false" (not $v.admission.allowOptOut) "1.30" "ValidatingAdmissionPolicy")
}}
{{- $kind := printf "admissionregistration.k8s.io/v1/%s" (last .) -}}
{{- if and (index . 1) (not ($.Capabilities.APIVersions.Has $kind)) -}}
{{- fail (printf "%s needs Kubernetes %s: the cluster has no %s (`helm template` knows no cluster: --api-versions %s)" (first .) (index . 2) (last .) $kind) -}}
{{- end -}}
{{- end -}}
{{- $version := .Capabilities.KubeVersion.Version -}}
{{- range list
  (list "pods.from=kubelet" (eq $v.pods.from "kubelet") "1.37")
  (list "pods.readAsNode=true" $v.pods.readAsNode "1.36")
  (list "agent.appArmorProfile" $v.agent.appArmorProfile "1.30")
}}
{{- if and (index . 1) (not (semverCompare (printf ">=%s-0" (last .)) $version)) -}}
{{- fail (printf "%s needs Kubernetes %s: the cluster has %s (`helm template` knows no cluster: --kube-version)" (first .) (last .) $version) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Runtimes would wait for a plugin that never comes. */ -}}
{{- define "agent.checkRequiredPlugins" -}}
{{- if and .Values.admission.requiredPlugins (eq (include "agent.nri" .) "off") -}}
{{- fail "admission.requiredPlugins=true with hooks.nri.mode=off: runtimes would refuse every pod that asks, since the agent does not connect to NRI; set hooks.nri.mode=required, or requiredPlugins=false" -}}
{{- end -}}
{{- end -}}

{{- /* Directories that are mounted have to be there for one purpose alone. Kubernetes' own taints are not the agent's, but those of its autoscaler may be. */ -}}
{{- define "agent.checkHooks" -}}
{{- $h := .Values.hooks -}}
{{- $dir := dir $h.nri.socket -}}
{{- if regexMatch "^/((run|tmp|var|etc|usr|opt|home|root|dev|proc|sys|boot|srv|mnt|lib|bin|sbin)|var/(run|lib|tmp|snap)|run/(lock|user))?$" $dir -}}
{{- fail (printf "hooks.nri.socket=%s: the agent would get the whole directory %s: name a socket in a directory of its own" $h.nri.socket $dir) -}}
{{- end -}}
{{- range $key := list "binDir" "confDir" -}}
{{- $dir := get $h.cni $key | toString -}}
{{- if regexMatch "^/([^/]+|(etc|opt|var|home)/(kubernetes|cni|lib|run))$" $dir -}}
{{- fail (printf "hooks.cni.%s=%s: the agent would get the whole directory: name one for CNI alone" $key $dir) -}}
{{- end -}}
{{- end -}}
{{- $key := $h.startupTaint.key -}}
{{- if and (regexMatch "^([^/]*[.])?kubernetes[.]io/" $key) (not (regexMatch "^([^/]*[.])?cluster-autoscaler[.]kubernetes[.]io/" $key)) -}}
{{- fail (printf "hooks.startupTaint.key=%s: Kubernetes sets and removes its own taints itself: name another one" $key) -}}
{{- end -}}
{{- end -}}

{{- /* A CNI plugin in a directory that the runtime does not use has no effect: it is refused if that can be detected. */ -}}
{{- define "agent.checkCNI" -}}
{{- if eq (include "agent.cni" .) "install" -}}
{{- $is := include "agent.platform" . -}}
{{- $node := include "agent.node" . | fromJson -}}
{{- if and (eq $is "openshift") (or (eq $node.conf "/etc/cni/net.d") (eq $node.bin "/opt/cni/bin")) -}}
{{- fail (printf "hooks.cni.mode=install with hooks.cni.confDir=%s and hooks.cni.binDir=%s: CRI-O of OpenShift reads /etc/kubernetes/cni/net.d and /var/lib/cni/bin; leave both values empty" $node.conf $node.bin) -}}
{{- end -}}
{{- $looks := "" -}}
{{- $version := .Capabilities.KubeVersion.Version -}}
{{- if contains "+k3s" $version }}{{ $looks = "k3s" }}
{{- else if contains "-gke." $version }}{{ $looks = "gke" }}
{{- else if contains "/microk8s/" $node.endpoint }}{{ $looks = "microk8s" }}{{ end -}}
{{- if and $looks (eq $is "kubernetes") (not (and .Values.hooks.cni.binDir .Values.hooks.cni.confDir)) -}}
{{- fail (printf "hooks.cni.mode=install with kubernetesDistribution=kubernetes on what looks like %s, whose directories are others: set kubernetesDistribution=%s, or hooks.cni.binDir and hooks.cni.confDir" $looks $looks) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /*
The agent runs proxies by the runtime's CRI. Without the policy its right to create tokens would be a right to every account of the cluster.
*/ -}}
{{- define "agent.checkProxies" -}}
{{- $p := .Values.proxies -}}
{{- $narrowed := include "agent.policy" (dict "root" . "asked" .Values.admission.restrictAgent "kind" "ValidatingAdmissionPolicy") -}}
{{- include "agent.checkIstio" (dict "root" . "narrowed" $narrowed) -}}
{{- if and (include "agent.tokenAudiences" . | fromJsonArray) (not $narrowed) -}}
{{- fail (printf "proxies.tokenAudiences with admission.restrictAgent=%v and no ValidatingAdmissionPolicy (Kubernetes 1.30; `helm template` knows no cluster: --api-versions admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy): without the policy the agent could create tokens of every account; set admission.restrictAgent=auto there, or leave proxies.tokenAudiences empty" .Values.admission.restrictAgent) -}}
{{- end -}}
{{- if and $p.enabled (eq .Values.runtime.name "docker") -}}
{{- fail "proxies.enabled=true with runtime.name=docker: Docker has no CRI, by which the agent runs proxies; use nodes with containerd or CRI-O, or leave proxies.enabled=false" -}}
{{- end -}}
{{- /* What would let pods start without their proxy all the same. */ -}}
{{- if and $p.enabled $p.required .Values.hooks.failOpen -}}
{{- fail "proxies.required=true with hooks.failOpen=true: hooks.failOpen lets start what proxies.required refuses; set one of them to false" -}}
{{- else if and $p.enabled $p.required (eq (include "agent.nri" .) "off") (ne (include "agent.cni" .) "install") -}}
{{- fail (printf "proxies.required=true with hooks.nri.mode=off and hooks.cni.mode=%s: no agent is asked before a pod starts; set hooks.nri.mode=required or hooks.cni.mode=install, or proxies.required=false" (include "agent.cni" .)) -}}
{{- end -}}
{{- /* Helm makes definitions at a first installation, and no later: a release of a chart that had none lacks them. */ -}}
{{- if and $p.enabled .Release.IsUpgrade (not (.Capabilities.APIVersions.Has "pod-network-controller.istio.io/v1alpha1/ProxyProfile")) -}}
{{- fail "proxies.enabled=true on a cluster that does not know ProxyProfiles, and an upgrade makes no definitions: run `helm show crds CHART | kubectl apply --server-side -f -` first (`helm template --is-upgrade` wants --api-versions pod-network-controller.istio.io/v1alpha1/ProxyProfile)" -}}
{{- end -}}
{{- $_ := include "agent.sharedProxies" . -}}
{{- end -}}

{{- /* What Istio's proxies need. narrowed says whether a policy bounds the tokens that the agent may create. */ -}}
{{- define "agent.checkIstio" -}}
{{- $v := .root.Values -}}
{{- if $v.proxies.istio.enabled -}}
{{- $missing := list -}}
{{- if not $v.proxies.enabled }}{{ $missing = append $missing "an agent that runs proxies (proxies.enabled=true)" }}{{ end -}}
{{- if not $v.proxies.istio.image }}{{ $missing = append $missing "the image of Istio's proxy, of the control plane's version (proxies.istio.image)" }}{{ end -}}
{{- if eq $v.runtime.name "docker" }}{{ $missing = append $missing "nodes with containerd or CRI-O (runtime.name)" }}{{ end -}}
{{- if not .narrowed }}{{ $missing = append $missing (printf "the policies that bound the agent's tokens (admission.restrictAgent=%v; Kubernetes 1.30; `helm template` knows no cluster: --api-versions admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy)" $v.admission.restrictAgent) }}{{ end -}}
{{- with $missing }}{{ fail (printf "proxies.istio.enabled=true needs: %s" (join "; " .)) }}{{ end -}}
{{- end -}}
{{- end -}}
