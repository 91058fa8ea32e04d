package profile

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// The sample's files are YAML whatever a pod is called, and nothing of a pod listens or connects in the proxy's own network.
func TestSamples_sharedEnvoy_renders(t *testing.T) {
	p := sample(t, "proxy-profile-shared-envoy.yaml")
	first, second := thePod(), thePod()
	second.Name, second.UID = `a": {}, "b`, "22222222-2222-2222-2222-222222222222"
	for _, pods := range [][]SharedPod{nil, {{PodDataOf(first), "cni-1"}, {PodDataOf(second), "cni-2"}}} {
		files, err := RenderShared(p, SharedData{
			Pods: pods, Node: "n1", Version: "v-7",
			Network: NetworkData{OutboundPort: 15201, InboundPort: 15206},
		})
		if err != nil {
			t.Fatal(err)
		}
		for name, content := range files {
			var parsed map[string]any
			if err := yaml.UnmarshalStrict([]byte(content), &parsed); err != nil || strings.Contains(content, "{{") {
				t.Fatalf("%s: %v in\n%s", name, err, content)
			}
		}
		checkSharedEnvoy(t, files, pods)
	}
}

// checkSharedEnvoy wants two listeners and two clusters in each pod's namespace, and the version.
func checkSharedEnvoy(t *testing.T, files map[string]string, pods []SharedPod) {
	t.Helper()
	type address struct {
		SocketAddress struct {
			Port      int    `json:"port_value"`
			Namespace string `json:"network_namespace_filepath"`
		} `json:"socket_address"`
		Pipe struct{ Path string }
	}
	var all struct {
		Version   string `json:"version_info"`
		Resources []struct {
			Name    string
			Address address
			Bind    struct {
				Source struct {
					Namespace string `json:"network_namespace_filepath"`
				} `json:"source_address"`
			} `json:"upstream_bind_config"`
		}
	}
	in := map[string]int{}
	for _, name := range []string{"listeners.yaml", "clusters.yaml"} {
		all.Resources = nil
		if err := yaml.Unmarshal([]byte(files[name]), &all); err != nil || all.Version != "v-7" {
			t.Errorf("%s: version %q, %v", name, all.Version, err)
		}
		for _, r := range all.Resources {
			in[name+" "+r.Address.SocketAddress.Namespace+r.Bind.Source.Namespace+r.Address.Pipe.Path]++
		}
	}
	want := map[string]int{"listeners.yaml version.sock": 1}
	for _, pod := range pods {
		want["listeners.yaml /var/run/netns/"+pod.NetNS], want["clusters.yaml /var/run/netns/"+pod.NetNS] = 2, 2
	}
	if len(in) != len(want) {
		t.Errorf("in namespaces: %v, want %v", in, want)
	}
	for name, n := range want {
		if in[name] != n {
			t.Errorf("%s: %d, want %d", name, in[name], n)
		}
	}
}
