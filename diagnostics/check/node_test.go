package check

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// nodeRoot is the files of a node with containerd, NRI and a network.
func nodeRoot(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		switch text {
		case "socket":
		case "fault": // a namespace, which is not entered
			if err := os.Symlink("/proc/self/ns/net", path); err != nil {
				t.Fatal(err)
			}
			continue
		default:
			if to, is := strings.CutPrefix(text, "-> "); is {
				if err := os.Symlink(to, path); err != nil {
					t.Fatal(err)
				}
				continue
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
	}
	return root
}

func look(t *testing.T, root string, ordinary, tproxy error) *NodeFacts {
	t.Helper()
	return NodeGatherer{
		Root: root, NRISocket: "/var/run/nri/nri.sock", CNIDir: "/etc/cni/net.d",
		Probe: func(context.Context) (error, error) { return ordinary, tproxy },
		Rules: func(_ context.Context, path string) (bool, error) {
			raw, err := os.ReadFile(path)
			switch {
			case err != nil:
				err = errors.New("not entered")
			case string(raw) == "unmounted":
				err = errors.New("it is no network namespace")
			}
			return string(raw) == "rules", err
		},
		Gone: func(path string) bool {
			raw, err := os.ReadFile(path)
			return errors.Is(err, fs.ErrNotExist) || string(raw) == "unmounted"
		},
	}.Gather(t.Context())
}

func goodNode() map[string]string {
	return map[string]string{
		"proc/sys/kernel/osrelease":         "6.18.0\n",
		"var/run/nri/nri.sock":              "socket",
		"etc/cni/net.d/10-flannel.conflist": `{"name":"cbr0","plugins":[{"type":"flannel"},{"type":"portmap"}]}`,
		"etc/cni/net.d/notes.txt":           "not read",
	}
}

func TestRunNode_goodNode_isOK(t *testing.T) {
	f := look(t, nodeRoot(t, goodNode()), nil, nil)
	results := RunNode(f)
	if Worst(results) != OK || len(results) != 4 {
		t.Error(Text(results))
	}
	if f.Kernel != "6.18.0" {
		t.Errorf("%+v", f)
	}
}

func TestNodeChecks(t *testing.T) {
	for name, tc := range map[string]struct {
		change           func(files map[string]string)
		ordinary, tproxy error
		check            string
		level            Level
		want             string
	}{
		"a kernel without nf_tables": {ordinary: errors.New("probe nftables: operation not supported"), check: "node-kernel", level: Fail, want: "operation not supported"},
		"a kernel without tproxy":    {tproxy: errors.New("no such file"), check: "node-tproxy", level: Warn, want: "no such file"},
		"an older kernel":            {change: func(f map[string]string) { f["proc/sys/kernel/osrelease"] = "5.10.1" }, check: "node-kernel", level: OK, want: "costs CPU"},
		"a link to /run, which is the node's": {change: func(f map[string]string) {
			delete(f, "var/run/nri/nri.sock")
			f["var/run"], f["run/nri/nri.sock"] = "-> /run", "socket"
		}, check: "node-nri", level: OK, want: "/var/run/nri/nri.sock"},
		"a link that leaves the root, which no link of a node can": {change: func(f map[string]string) {
			delete(f, "var/run/nri/nri.sock")
			f["var/run"], f["run/nri/nri.sock"] = "-> ../../../../run", "socket"
		}, check: "node-nri", level: OK, want: "/var/run/nri/nri.sock"},
		"a socket that leads to another one": {change: func(f map[string]string) {
			f["var/run/nri/nri.sock"], f["run/k3s/nri.sock"] = "-> /run/k3s/nri.sock", "socket"
		}, check: "node-nri", level: OK, want: "/var/run/nri/nri.sock"},
		"what agents keep for the next one": {change: func(f map[string]string) {
			f["run/istio-pod-network-controller/kept/namespaces.json"] = "[]"
		}, check: "node-leftovers", level: OK, want: "the node has nothing of the agent's"},
		"links in a circle": {change: func(f map[string]string) { f["var/run/nri/nri.sock"] = "-> nri.sock" }, check: "node-nri", level: Warn, want: "not offered"},
		"an entry behind links": {change: func(f map[string]string) {
			delete(f, "etc/cni/net.d/10-flannel.conflist")
			delete(f, "etc/cni/net.d/notes.txt")
			f["etc/cni/net.d"], f["var/lib/cni/00-x.conflist"] = "-> /var/lib/cni", `{"plugins":[{"type":"istio-pod-network-cni"}]}`
		}, check: "node-leftovers", level: Fail, want: "1 CNI entry (/etc/cni/net.d/00-x.conflist)"},
		"no NRI": {change: func(f map[string]string) { delete(f, "var/run/nri/nri.sock") }, check: "node-nri", level: Warn, want: "not offered"},
		"an entry of ours": {change: func(f map[string]string) {
			f["etc/cni/net.d/00-x.conflist"] = `{"plugins":[{"type":"istio-pod-network-cni"}]}`
		}, check: "node-leftovers", level: Fail, want: "no agent runs here, so no pod starts, unless hooks.cni.failOpen was set: the node has of one: 1 CNI entry (/etc/cni/net.d/00-x.conflist)"},
		"an entry of ours beside a fault": {change: func(f map[string]string) {
			f["etc/cni/net.d/00-x.conflist"], f["run/netns/cni-1"] = `{"plugins":[{"type":"istio-pod-network-cni"}]}`, "fault"
		}, check: "node-leftovers", level: Fail, want: "1 CNI entry"},
		"a file of networks that is huge": {change: func(f map[string]string) { f["etc/cni/net.d/00-x.conf"] = strings.Repeat(" ", maxFile+1) }, check: "node-leftovers", level: OK, want: "nothing"},
		"what a removed agent left": {change: func(f map[string]string) {
			f["run/istio-pod-network-controller/sidecars/u1.s1/run/x"] = ""
			f["opt/cni/bin/istio-pod-network-cni"] = "binary"
		}, check: "node-leftovers", level: Warn, want: "no agent runs here, and the node has of one: 1 file (/opt/cni/bin/istio-pod-network-cni); " +
			"1 proxy directory (/run/istio-pod-network-controller/sidecars/u1.s1)"},
		"rules of a removed agent": {change: func(f map[string]string) { f["run/netns/cni-1"], f["run/netns/cni-2"] = "rules", "" }, check: "node-leftovers", level: Warn, want: "1 programmed pod (/run/netns/cni-1)"},
		"what an agent uses": {change: func(f map[string]string) {
			f["run/istio-pod-network-controller/cni.sock"], f["proc/77/cmdline"] = "socket", "/istio-pod-network-controller\x00run\x00--sidecars=true\x00"
		}, check: "node-leftovers", level: OK, want: "an agent runs here, and the node has of it: 1 file"},
		"a command beside what is left": {change: func(f map[string]string) {
			f["run/istio-pod-network-controller/shared/edge/lock"], f["proc/77/cmdline"] = "", "/istio-pod-network-controller\x00check\x00--node\x00"
		}, check: "node-leftovers", level: Warn, want: "shared/edge"},
		"a name whose namespace was unmounted": {change: func(f map[string]string) { f["run/netns/cni-1"] = "unmounted" }, check: "node-leftovers", level: OK, want: "nothing"},
		"a namespace that cannot be entered":   {change: func(f map[string]string) { f["run/netns/cni-1"] = "fault" }, check: "node-leftovers", level: Warn, want: "cni-1: not entered"},
	} {
		t.Run(name, func(t *testing.T) {
			files := goodNode()
			if tc.change != nil {
				tc.change(files)
			}
			root := nodeRoot(t, files)
			r := find(RunNode(look(t, root, tc.ordinary, tc.tproxy)), tc.check)
			if strings.Contains(r.Message, "CNI entry") && !strings.Contains(r.Do, "cni uninstall --cni-conf-dir "+root+"/") {
				t.Errorf("%q", r.Do)
			}
			if r.Level != tc.level || !strings.Contains(r.Message, tc.want) {
				t.Errorf("%+v, want %s with %q", r, tc.level, tc.want)
			}
		})
	}
}
