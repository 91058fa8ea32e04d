package cmdline

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// SplitPod splits NAMESPACE/POD. Either is a name as the API server takes it, so neither leads to another directory.
func SplitPod(text string) (namespace, pod string, err error) {
	namespace, pod, _ = strings.Cut(text, "/")
	if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(pod)) > 0 {
		return "", "", fmt.Errorf("%q: want NAMESPACE/POD", text)
	}
	return namespace, pod, nil
}
