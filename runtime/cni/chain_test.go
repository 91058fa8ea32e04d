package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"istio-pod-network-controller/internal/podnet"
)

// bridge is a fake of the plugin that makes the pod's network: it returns the result in its configuration.
func bridge(in io.Reader, out io.Writer) int {
	var conf struct {
		CNIVersion string          `json:"cniVersion"`
		Result     json.RawMessage `json:"result"`
	}
	switch os.Getenv("CNI_COMMAND") {
	case "VERSION":
		fmt.Fprintf(out, `{"cniVersion": "1.1.0", "supportedVersions": ["0.3.1", "0.4.0", "1.0.0", "1.1.0"]}`)
	case "ADD":
		if err := json.NewDecoder(in).Decode(&conf); err != nil {
			return 1
		}
		fmt.Fprint(out, string(conf.Result))
	}
	return 0
}

// results are what the bridge plugin of the CNI project answered for a dual-stack network, by version.
func results(version string) string {
	interfaces := `"interfaces": [
      {"name": "cni0", "mac": "8e:6d:2b:00:54:07"},
      {"name": "veth2f6d", "mac": "be:3e:41:9a:0f:11"},
      {"name": "eth0", "mac": "c2:11:22:33:44:55", "sandbox": "/var/run/netns/cni-8f5e"}]`
	ips := `"ips": [
      {"version": "4", "interface": 2, "address": "10.244.0.7/24", "gateway": "10.244.0.1"},
      {"version": "6", "interface": 2, "address": "fd00:244::7/64", "gateway": "fd00:244::1"}]`
	if strings.HasPrefix(version, "1.") {
		ips = strings.NewReplacer(`"version": "4", `, "", `"version": "6", `, "").Replace(ips)
	}
	return fmt.Sprintf(`{"cniVersion": %q, %s, %s, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}], "dns": {"nameservers": ["10.96.0.10"]}}`,
		version, interfaces, ips)
}

// chain is the fake bridge and our plugin, called as a runtime does, through the CNI project's own library.
type chain struct {
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
	rt   *libcni.RuntimeConf
}

func newChain(t *testing.T, version, ours string) chain {
	t.Helper()
	list, err := libcni.NetworkConfFromBytes(fmt.Appendf(nil,
		`{"cniVersion": %q, "name": "kc", "plugins": [{"type": "bridge", "result": %s}, %s]}`, version, results(version), ours))
	if err != nil {
		t.Fatal(err)
	}
	return chain{
		cni: libcni.NewCNIConfigWithCacheDir([]string{filepath.Dir(program("bridge"))}, t.TempDir(), nil), list: list,
		rt: &libcni.RuntimeConf{ContainerID: "8f5e2b", NetNS: "/var/run/netns/cni-8f5e", IfName: "eth0", Args: [][2]string{
			{"IgnoreUnknown", "1"},
			{"K8S_POD_NAMESPACE", "shop"},
			{"K8S_POD_NAME", "cart-0"},
			{"K8S_POD_INFRA_CONTAINER_ID", "8f5e2b"},
			{"K8S_POD_UID", "3f1c9d52-2a0b-4c52-9a69-0f6a9a1c7f10"},
		}},
	}
}

func entryFor(socket, more string) string {
	return fmt.Sprintf(`{"type": %q, "socket": %q, "timeoutSeconds": 5%s}`, PluginType, socket, more)
}

// add calls ADD for the whole chain, whose result must be the bridge's.
func (c chain) add(t *testing.T, version string) {
	t.Helper()
	result, err := c.cni.AddNetworkList(t.Context(), c.list, c.rt)
	if err != nil {
		t.Fatal(err)
	}
	var got, want any
	text, err := json.Marshal(result)
	if err := errors.Join(err, json.Unmarshal(text, &got), json.Unmarshal([]byte(results(version)), &want)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the result changed on its way (-bridge's +runtime's):\n%s", diff)
	}
}

// checkAndStatus calls CHECK and STATUS, for the versions that have them.
func (c chain) checkAndStatus(t *testing.T, version string) {
	t.Helper()
	if version != "0.3.1" {
		if err := c.cni.CheckNetworkList(t.Context(), c.list, c.rt); err != nil {
			t.Error(err)
		}
	}
	if version == "1.1.0" {
		if err := c.cni.GetStatusNetworkList(t.Context(), c.list); err != nil {
			t.Error(err)
		}
	}
}

func TestChain_everyVersion_works(t *testing.T) {
	for _, version := range Versions() {
		t.Run(version, func(t *testing.T) {
			agent := &fakeAgent{}
			c := newChain(t, version, entryFor(serve(t, agent), ""))
			c.add(t, version)
			wantSandbox := podnet.Sandbox{
				Namespace: "shop", Name: "cart-0", UID: "3f1c9d52-2a0b-4c52-9a69-0f6a9a1c7f10", ID: "8f5e2b", NetNS: "/var/run/netns/cni-8f5e",
			}
			if diff := cmp.Diff(wantSandbox, agent.last); diff != "" {
				t.Errorf("sandbox (-want +got):\n%s", diff)
			}
			c.checkAndStatus(t, version)
			if err := c.cni.DelNetworkList(t.Context(), c.list, c.rt); err != nil {
				t.Error(err)
			}
			asked := map[string][]string{"0.3.1": {"ADD", "DEL"}, "1.1.0": {"ADD", "CHECK", "DEL"}}[version]
			if asked == nil {
				asked = []string{"ADD", "CHECK", "DEL"}
			}
			if diff := cmp.Diff(asked, agent.requests()); diff != "" {
				t.Errorf("the agent was asked (-want +got):\n%s", diff)
			}
		})
	}
}

func TestGC_agentAway_succeeds(t *testing.T) {
	c := newChain(t, "1.1.0", entryFor("/nonexistent/cni.sock", ""))
	args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "8f5e2b", IfName: "eth0"}}}
	if err := c.cni.GCNetworkList(t.Context(), c.list, args); err != nil {
		t.Error(err)
	}
}

func TestVersion_asked_isAnswered(t *testing.T) {
	c := newChain(t, "1.0.0", entryFor("/nonexistent/cni.sock", ""))
	info, err := c.cni.GetVersionInfo(t.Context(), PluginType)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}, info.SupportedVersions()); diff != "" {
		t.Error(diff)
	}
}

func TestChain_agentAway_refusesOnlyWhatNeedsIt(t *testing.T) {
	add := func(t *testing.T, c chain) error {
		t.Helper()
		_, err := c.cni.AddNetworkList(t.Context(), c.list, c.rt)
		return err
	}
	status := func(t *testing.T, c chain) error {
		t.Helper()
		return c.cni.GetStatusNetworkList(t.Context(), c.list)
	}
	check := func(t *testing.T, c chain) error {
		t.Helper()
		// A runtime calls CHECK after ADD: the result is in its cache.
		there := newChain(t, "1.1.0", entryFor(serve(t, &fakeAgent{}), ""))
		there.add(t, "1.1.0")
		c.cni = there.cni
		return c.cni.CheckNetworkList(t.Context(), c.list, c.rt)
	}
	del := func(t *testing.T, c chain) error {
		t.Helper()
		return c.cni.DelNetworkList(t.Context(), c.list, c.rt)
	}
	cases := map[string]struct {
		call     func(*testing.T, chain) error
		more     string
		wantCode uint // 0: success
	}{
		"ADD fails and is to be tried again":             {add, "", types.ErrTryAgainLater},
		"ADD passes where the configuration fails open":  {add, `, "failOpen": true`, 0},
		"ADD passes for an excluded namespace":           {add, `, "excludeNamespaces": ["kube-system", "shop"]`, 0},
		"ADD fails for a namespace that is not excluded": {add, `, "excludeNamespaces": ["kube-system"]`, types.ErrTryAgainLater},
		"DEL passes":                                         {del, "", 0},
		"CHECK passes":                                       {check, "", 0},
		"STATUS passes by default":                           {status, "", 0},
		"STATUS fails where it needs the agent":              {status, `, "statusNeedsAgent": true`, types.ErrPluginNotAvailable},
		"STATUS passes where pods start without rules":       {status, `, "statusNeedsAgent": true, "failOpen": true`, 0},
		"STATUS passes for a configuration that ADD refuses": {status, `, "excludeNamespaces": ["?"]`, 0},
		"ADD passes for a namespace of an excluded pattern":  {add, `, "excludeNamespaces": ["sh*p", "openshift-*"]`, 0},
		"ADD fails where no pattern matches the whole name":  {add, `, "excludeNamespaces": ["sh*x", "openshift-*", "ho*", "s*o"]`, types.ErrTryAgainLater},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := c.call(t, newChain(t, "1.1.0", entryFor("/nonexistent/cni.sock", c.more)))
			var got *types.Error
			switch {
			case c.wantCode == 0:
				if err != nil {
					t.Error(err)
				}
			case !errors.As(err, &got) || got.Code != c.wantCode:
				t.Errorf("got %#v, want code %d", err, c.wantCode)
			case !strings.Contains(got.Msg, "istio-pod-network-controller agent"):
				t.Errorf("people read %q", got.Msg)
			}
		})
	}
}
