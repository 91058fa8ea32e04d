package istio

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// TLSModeLabel is the label of a pod by which istiod has peers send mTLS to it, with the value TLSModeIstio.
const (
	TLSModeLabel = "security.istio.io/tlsMode"
	TLSModeIstio = "istio"
)

// Labels that the injector adds to a pod.
const (
	keyTunnel  = "networking.istio.io/tunnel"
	keyNetwork = "topology.istio.io/network"
)

// labels are the pod's with the injector's, which are in the proxy's file only.
func labels(p Pod, of workload, network string, tunnel bool) map[string]string {
	out := maps.Clone(p.Pod.Labels)
	if out == nil {
		out = map[string]string{}
	}
	name := cmp.Or(out["service.istio.io/canonical-name"], out["app.kubernetes.io/name"], out["app"], of.name)
	out["service.istio.io/canonical-name"] = strings.Trim(name[:min(len(name), 63)], "-_.")
	out["service.istio.io/canonical-revision"] = cmp.Or(out["service.istio.io/canonical-revision"], out["app.kubernetes.io/version"], out["version"], "latest")
	out[TLSModeLabel] = cmp.Or(out[TLSModeLabel], TLSModeIstio)
	if tunnel {
		out[keyTunnel] = cmp.Or(out[keyTunnel], "http")
	}
	if network != "" {
		out[keyNetwork] = network
	}
	return out
}

// downward writes a map as the kubelet does into the files of a downward API volume.
func downward(of map[string]string) string {
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(of)) {
		lines = append(lines, fmt.Sprintf("%s=%q", key, of[key]))
	}
	return strings.Join(lines, "\n")
}

type workload struct {
	apiVersion, kind, name string
}

var cronJob = regexp.MustCompile(`(.+)-\d{8,10}$`)

// workloadOf guesses as Istio does (GetDeployMetaFromPod in pkg/kube/util.go).
func workloadOf(pod *corev1.Pod) workload {
	of := workload{"v1", "Pod", pod.Name}
	if pod.GenerateName == "" {
		return of
	}
	for _, ref := range pod.OwnerReferences {
		if ref.Controller == nil || !*ref.Controller {
			continue
		}
		of = workload{ref.APIVersion, ref.Kind, ref.Name}
		switch {
		case of.kind == "ReplicaSet" && hashed(of.name, pod.Labels["pod-template-hash"]):
			of = workload{ref.APIVersion, "Deployment", strings.TrimSuffix(of.name, "-"+pod.Labels["pod-template-hash"])}
		case of.kind == "ReplicaSet" && hashed(of.name, pod.Labels["rollouts-pod-template-hash"]): // of Argo
			of = workload{"v1alpha1", "Rollout", strings.TrimSuffix(of.name, "-"+pod.Labels["rollouts-pod-template-hash"])}
		case of.kind == "ReplicationController" && pod.Labels["deploymentconfig"] != "": // of OpenShift
			of.kind, of.name = "DeploymentConfig", pod.Labels["deploymentconfig"]
		case of.kind == "Job":
			if parts := cronJob.FindStringSubmatch(of.name); parts != nil {
				of = workload{"batch/v1", "CronJob", parts[1]}
			}
		}
		break
	}
	return of
}

func hashed(name, hash string) bool { return hash != "" && strings.HasSuffix(name, hash) }
