package charttest

import (
	"slices"
	"strings"
	"testing"
)

// digestOf is a digest of one pair of digits.
func digestOf(pair string) string { return "sha256:" + strings.Repeat(pair, 32) }

// A digest is a digest, wherever it is written, and wins over a tag.
func TestTheImage(t *testing.T) {
	digest, version := digestOf("0a"), about(t)["appVersion"].(string)
	for in, want := range map[string]string{
		"image: {repository: r/a}":                                                   "r/a:" + version,
		"{image: {repository: r/a}, redirection.backend: iptables}":                  "r/a:" + version + "-iptables",
		"image: {repository: r/a, tag: '7'}":                                         "r/a:7",
		"{image: {repository: r/a, tag: '" + digest + "'}, hooks.cni.mode: install}": "r/a@" + digest,
		"image: {repository: r/a, tag: '7@" + digest + "'}":                          "r/a@" + digest,
		"image: {repository: r/a@" + digest + "}":                                    "r/a@" + digest,
		"image: {repository: r/a@" + digest + ", tag: '7'}":                          "r/a@" + digest,
		"image: {repository: r/a@" + digest + ", tag: '" + digest + "'}":             "r/a@" + digest,
		"image: {repository: 'r/a:7@" + digest + "'}":                                "r/a@" + digest,
		"image: {repository: 'r/a:7'}":                                               "r/a:7",
		"{image: {repository: 'r/a:7'}, redirection.backend: iptables}":              "r/a:7",
		"image: {repository: 'localhost:5000/a'}":                                    "localhost:5000/a:" + version,
		"image: {repository: 'localhost:5000/a:7'}":                                  "localhost:5000/a:7",
		"image: {repository: '[fd00::1]:5000/mesh/a-b__c.d', tag: v1.2_3-x}":         "[fd00::1]:5000/mesh/a-b__c.d:v1.2_3-x",
		"image: {repository: Registry.Example.com/a, tag: A}":                        "Registry.Example.com/a:A",
	} {
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
	one := digestOf("0a")
	for image, words := range map[string]string{
		"":                          " is blank: name an image",
		" ":                         " is blank: name an image",
		"r/a b":                     `="r/a b" has a space`,
		"https://r.example.com/a":   "=https://r.example.com/a: an image has no scheme; leave https:// out",
		"r.example.com/Mesh/agent":  "=r.example.com/Mesh/agent: Mesh/agent has upper case",
		"Mesh/agent":                "=Mesh/agent: Mesh/agent has upper case",
		"r.example.com//a":          "=r.example.com//a is no image's name",
		"r.example.com/a/":          "=r.example.com/a/ is no image's name",
		"r_.example.com/a":          "=r_.example.com/a is no image's name",
		"a:":                        "=a: is no image's name",
		"a:7:8":                     `=a:7:8: "7:8" is no tag`,
		"a:7+8":                     `=a:7+8: "7+8" is no tag`,
		"a@sha256:0a":               "=a@sha256:0a: a digest is sha256: and 64",
		"a@":                        "=a@: a digest is sha256: and 64",
		"a:sha256:0a":               "=a:sha256:0a: a digest is sha256: and 64",
		"a@" + strings.ToUpper(one): "=a@" + strings.ToUpper(one) + ": a digest is sha256: and 64",
	} {
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
	digest := digestOf("0a")
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
