package check

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/printable"
)

// endingRegistries are the prefixes of Istio's images, and of its hub, that end on 1 January 2027 (istio/istio#61467).
func endingRegistries() []string { return []string{"gcr.io/istio-release", "registry.istio.io"} }

// isEnding reports whether an image, or a hub, is at a registry that ends.
func isEnding(image string) bool {
	return slices.ContainsFunc(endingRegistries(), func(registry string) bool { return image == registry || strings.HasPrefix(image, registry+"/") })
}

// endingImages returns the images of a pod that are at a registry that ends, each once.
func endingImages(pod *corev1.Pod) (images []string) {
	for _, c := range containersOf(pod) {
		if isEnding(c.Image) && !slices.Contains(images, c.Image) {
			images = append(images, c.Image)
		}
	}
	return images
}

// hubOf returns global.hub of the injector's values, from where it takes the images of pods to come; "" if they do not say.
func hubOf(text string) string {
	var values struct {
		Global struct {
			Hub string `json:"hub"`
		} `json:"global"`
	}
	if json.Unmarshal([]byte(text), &values) != nil {
		return ""
	}
	return values.Global.Hub
}

// istioRegistries names the images that cannot be pulled any more once their registry has ended, and what will ask for more of them.
func istioRegistries(f *Facts) finding {
	pods := map[string]int{}
	for _, p := range f.Pods {
		for _, image := range p.Ending {
			pods[image]++
		}
	}
	var ending []string
	for image, n := range pods {
		ending = append(ending, fmt.Sprintf("%s (%s)", image, printable.Count(n, "pod")))
	}
	for _, r := range f.Istio.Revisions {
		if isEnding(r.Hub) {
			ending = append(ending, fmt.Sprintf("global.hub %s (%s)", r.Hub, r.what("ConfigMap istio-sidecar-injector")))
		}
	}
	for name, profile := range f.Profiles {
		if profile.Istio != nil && isEnding(profile.Istio.Image) {
			ending = append(ending, fmt.Sprintf("%s (ProxyProfile %s)", profile.Istio.Image, name))
		}
	}
	if len(ending) == 0 {
		return fine("no image is at a registry of Istio's that ends")
	}
	return warning("images at registries that end on 1 January 2027: "+some(ending),
		"take images from docker.io/istio (global.hub, the image of the ProxyProfile), and charts from oci://ghcr.io/istio/release/charts instead of gcr.io or istio-release.storage.googleapis.com; "+
			"nodes that pull them then find nothing")
}
