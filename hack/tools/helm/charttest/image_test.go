package charttest

import (
	"slices"
	"strings"
	"testing"
)

type imageCases struct{ Taken, Refused map[string]string }

func images(t *testing.T) (cases imageCases) {
	t.Helper()
	table(t, "images.yaml", &cases)
	return cases
}

// A digest is a digest, wherever it is written, and wins over a tag.
func TestTheImage(t *testing.T) {
	for in, want := range images(t).Taken {
		want = strings.ReplaceAll(want, "APPVERSION", about(t)["appVersion"].(string))
		pod := rendering(t, in).agent(t)
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			if c.Image != want {
				t.Errorf("%s: container %s has %s, want %s", in, c.Name, c.Image, want)
			}
		}
	}
}

// What no runtime could pull is refused by its value and its key, for each value that is an image.
func TestImagesThatCannotBeAreRefused(t *testing.T) {
	for image, words := range images(t).Refused {
		quoted := "'" + image + "'"
		refuses(t, "image: {repository: "+quoted+"}", "image.repository"+words)
		refuses(t, "proxies: {enabled: true, shared: ["+strings.Replace(minimalShared, "'a/b:1'", quoted, 1)+"]}", "proxies.shared[0].image"+words)
		refuses(t, strings.Replace(withIstio, "namespace: mesh", "spec: {istio: {image: "+quoted+"}}", 1), "proxies.istio.spec.istio.image"+words)
		if image != "" { // words of its own
			refuses(t, strings.Replace(withIstio, "'localhost/proxyv2:1'", quoted, 1), "proxies.istio.image"+words)
		}
	}
}

// The other images are taken whole, and a digest in the place of a tag is one there, too.
func TestOtherImages(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	for in, want := range map[string]string{
		"r.example.com:5000/a/b": "r.example.com:5000/a/b", "a:7": "a:7", "a:7@" + digest: "a:7@" + digest, "a@" + digest: "a@" + digest, "a:" + digest: "a@" + digest,
	} {
		if got := rendering(t, "proxies: {enabled: true, shared: ["+strings.Replace(minimalShared, "'a/b:1'", "'"+in+"'", 1)+"]}").shared(t).Spec.Template.Spec.Containers[0].Image; got != want {
			t.Errorf("the shared proxy's image %s is %s, want %s", in, got, want)
		}
		made := rendering(t, strings.Replace(withIstio, "localhost/proxyv2:1", in, 1))
		if got := at(made.custom(t, "ProxyProfile", ""), "spec", "istio", "image"); got != want {
			t.Errorf("the profile's image %s is %v, want %s", in, got, want)
		}
	}
}
