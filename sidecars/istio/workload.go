package istio

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

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
