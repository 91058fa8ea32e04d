package config

import (
	"encoding/base64"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"istio-pod-network-controller/hack/cluster/internal/pki"
	"istio-pod-network-controller/hack/cluster/internal/plan"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestNodeFilesMatchGolden(t *testing.T) {
	files := nodeFiles(t, Containerd)
	for path, text := range nodeFiles(t, CRIO) {
		if common, there := files[path]; !there {
			files[path] = text
		} else if want := strings.ReplaceAll(common, "containerd/containerd.sock", "crio/crio.sock"); text != want {
			t.Errorf("%s differs by more than the socket:\n%s", path, cmp.Diff(want, text))
		}
	}
	for path, got := range files {
		golden := filepath.Join("testdata", filepath.Base(path))
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-golden +rendered):\n%s", path, diff)
		}
	}
}

func TestConflistGivesEachPodBothFamilies(t *testing.T) {
	var list struct {
		Plugins []struct {
			Type string
			IPAM struct{ Ranges [][]struct{ Subnet string } }
		}
	}
	if err := json.Unmarshal([]byte(nodeFiles(t, Containerd)["/etc/cni/net.d/10-bridge.conflist"]), &list); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range list.Plugins[0].IPAM.Ranges {
		got = append(got, r[0].Subnet)
	}
	if diff := cmp.Diff([]string{"10.244.0.0/24", "fd00:10:244::/64"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestYAMLFilesParse(t *testing.T) {
	for path, text := range nodeFiles(t, Containerd) {
		if !strings.HasSuffix(path, ".yaml") {
			continue
		}
		var v map[string]any
		if err := yaml.UnmarshalStrict([]byte(text), &v); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestKubeconfigHoldsServerAndUser(t *testing.T) {
	text, err := Kubeconfig("https://172.30.0.1:6443", []byte("CA"), pki.Pair{Cert: []byte("CERT"), Key: []byte("KEY")})
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Clusters []struct{ Cluster map[string]string }
		Users    []struct{ User map[string]string }
	}
	if err := yaml.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	want := map[string]string{"server": "https://172.30.0.1:6443", "certificate-authority-data": b64("CA")}
	if diff := cmp.Diff(want, got.Clusters[0].Cluster); diff != "" {
		t.Error(diff)
	}
	want = map[string]string{"client-certificate-data": b64("CERT"), "client-key-data": b64("KEY")}
	if diff := cmp.Diff(want, got.Users[0].User); diff != "" {
		t.Error(diff)
	}
}

func TestFiles_otherReleaseOfContainerd_hasTheVersionThatAllRead(t *testing.T) {
	files, err := Node{Plan: plan.Default(), Runtime: Containerd, Programs: "/programs", RuntimePrograms: "/1.7.35", PauseImage: "localhost/pause:1"}.Files()
	if err != nil {
		t.Fatal(err)
	}
	text := files["/etc/containerd/config.toml"]
	for _, want := range []string{"\nversion = 2\n", "sandbox_image = 'localhost/pause:1'", "BinaryName = '/programs/runc'"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestFiles_runtimeThatIsNotKnown_isRefused(t *testing.T) {
	if _, err := (Node{Plan: plan.Default(), Runtime: "docker"}).Files(); err == nil || !strings.Contains(err.Error(), `"docker"`) {
		t.Errorf("got %v", err)
	}
}

func nodeFiles(t *testing.T, runtime string) map[string]string {
	t.Helper()
	n := Node{
		Plan: plan.Default(), Runtime: runtime, Programs: "/programs", Tools: "/tools", PauseImage: "localhost/pause:1",
	}
	if runtime == CRIO {
		n.RuntimePrograms = "/programs-of-the-runtime"
	}
	files, err := n.Files()
	if err != nil {
		t.Fatal(err)
	}
	return files
}
