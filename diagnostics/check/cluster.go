package check

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/version"
)

// oldest is the oldest Kubernetes that the agent is meant for.
const oldest = "1.28"

func kubernetesVersion(f *Facts) finding {
	have, err := version.ParseGeneric(f.Version)
	if err != nil {
		return warning(fmt.Sprintf("the API server says version %q, which is none", f.Version), "see that it is Kubernetes "+oldest+" or newer")
	}
	if have.LessThan(version.MustParseGeneric(oldest)) {
		return failing("Kubernetes "+f.Version+" is older than "+oldest, "upgrade the cluster")
	}
	return fine("Kubernetes " + f.Version)
}

func validatingPolicies(f *Facts) finding {
	if f.APIs.Validating {
		return fine("ValidatingAdmissionPolicy v1 is served: the agent's rights can be narrowed to its own node")
	}
	return warning("ValidatingAdmissionPolicy v1 is not served (Kubernetes 1.30): a stolen token of the agent can write to the status of every pod",
		"upgrade the cluster, and leave startupTaint and sidecars.tokenAudiences off until then")
}

func mutatingPolicies(f *Facts) finding {
	if f.APIs.Mutating {
		return fine("MutatingAdmissionPolicy v1 is served: pods that ask get the readiness gate as they are created")
	}
	if d := f.ours(); d != nil {
		return warning("MutatingAdmissionPolicy v1 is not served (Kubernetes 1.36): no pod gets the readiness gate or the wait container by itself",
			"add them to the pods' templates, or rely on an early hook")
	}
	return warning("MutatingAdmissionPolicy v1 is not served (Kubernetes 1.36): the values below admission have no effect",
		"add the readiness gate to the pods' templates, or rely on an early hook")
}
