package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// E2E_RECORD names a file. With it this program tests nothing, and writes there what the node has; E2E_FRESH names that file to the tests.
const (
	envRecord = "E2E_RECORD"
	envFresh  = "E2E_FRESH"
)

// traces are what a node has of all that the chart could leave there, by kind and name. Of pods only those count that are no more: a namespace, a
// cgroup or a directory of a pod that the API server has is none.
type traces map[string]map[string]string

// The kinds of traces.
const (
	kindFiles     = "files"
	kindMounts    = "mounts"
	kindLinks     = "links"
	kindRules     = "rules"
	kindProcesses = "processes"
	kindStrays    = "of pods that are gone"
	kindLogs      = "logs of pods that are gone" // the kubelet removes them once a minute
)

// of returns the traces of some kinds.
func (t traces) of(kinds ...string) traces {
	out := traces{}
	for _, kind := range kinds {
		out[kind] = t[kind]
	}
	return out
}

// routes takes the notes of which proxies rules lead to out of the traces, and returns their names: an agent removes those of sandboxes that are gone
// at its start, and every ten minutes.
func (t traces) routes() (names []string) {
	maps.DeleteFunc(t[kindFiles], func(name, _ string) bool {
		noted := strings.HasPrefix(name, "/"+sidecarRoot+"/routes")
		if noted {
			names = append(names, name)
		}
		return noted
	})
	return names
}

// record writes what the node has to a file.
func record(file string) error {
	c, err := shared()
	if err != nil {
		return err
	}
	found, err := c.traces(context.Background()) //nolint:forbidigo // there is no test
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(found, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

// freshTraces are what hack/e2e.sh recorded before the chart was ever installed.
func freshTraces(t *testing.T) traces {
	t.Helper()
	file := os.Getenv(envFresh)
	if file == "" {
		t.Fatalf("%s must name what was recorded before the chart was installed: E2E_HOOKS=lifecycle hack/e2e.sh", envFresh)
	}
	text, err := os.ReadFile(file)
	must(t, err)
	return decode[traces](t, string(text))
}

func (c *cluster) traces(ctx context.Context) (traces, error) {
	out := traces{}
	var errs []error
	for kind, read := range map[string]func(context.Context) (map[string]string, error){
		kindFiles: c.traceFiles, kindMounts: c.traceMounts, kindLinks: c.traceLinks, kindRules: c.traceRules, kindProcesses: c.traceProcesses, kindStrays: c.traceStrays,
		kindLogs: c.traceLogs,
	} {
		found, err := read(ctx)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", kind, err))
		}
		out[kind] = found
	}
	return out, errors.Join(errs...)
}

// keptDir has what agents keep for a start without the API server: it changes with the cluster, and stays until the node's next start, as
// docs/removal.md says.
const keptDir = "/run/istio-pod-network-controller/kept"

// traceFiles are directories by their modes and files by what is in them, where the chart has to do with them.
func (c *cluster) traceFiles(context.Context) (map[string]string, error) {
	found := map[string]string{}
	for _, dir := range []string{"/etc/cni", "/opt/cni", "/etc/nri", "/opt/nri", "/run/istio-pod-network-controller", "/run/crio", "/run/nri", "/etc/istio-pod-network-controller"} {
		err := filepath.WalkDir(c.node.NodeRoot+dir, func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil || dir == "/run/crio" && entry.Type() == fs.ModeSymlink { // CRI-O has one for each container, and leaves it
				return err
			}
			if path == c.node.NodeRoot+keptDir {
				return fs.SkipDir
			}
			what, err := describeFile(path)
			if !errors.Is(err, fs.ErrNotExist) {
				found[strings.TrimPrefix(path, c.node.NodeRoot)] = what
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return found, nil
}

func describeFile(path string) (string, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	what := info.Mode().String()
	if !info.Mode().IsRegular() {
		return what, nil
	}
	text, err := os.ReadFile(path)
	return fmt.Sprintf("%s %x", what, sha256.Sum256(text)), err
}

// perPod reports whether something is made for each pod and goes with it; traceStrays looks for those that have not gone.
func perPod(path string) bool {
	for _, dir := range []string{"/run/netns/", "/var/run/netns/", "/var/lib/kubelet/pods/", "/run/containerd/", "/var/lib/containerd/", "/run/containers/", "/var/lib/containers/"} {
		if strings.HasPrefix(path, dir) {
			return true
		}
	}
	return false
}

func (c *cluster) traceMounts(context.Context) (map[string]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", c.node.NodePID))
	found := map[string]string{}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 6 || perPod(fields[4]) {
			continue
		}
		_, kind, _ := strings.Cut(line, " - ")
		kind, _, _ = strings.Cut(kind, " ")
		found[fields[4]] += kind + " "
	}
	return found, err
}

// traceLinks are the node's links but the bridge, which the first pod's CNI plugin makes, and those to pods, of which there are as many as pods with a
// network of their own.
func (c *cluster) traceLinks(ctx context.Context) (map[string]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", c.node.NodePID))
	if err != nil {
		return nil, err
	}
	found, toPods := map[string]string{}, 0
	for line := range strings.Lines(string(text)) {
		name, _, isLink := strings.Cut(strings.TrimSpace(line), ":")
		switch {
		case !isLink || name == "cni0":
		case strings.HasPrefix(name, "veth"):
			toPods++
		default:
			found[name] = ""
		}
	}
	list, err := c.runtime.ListPodSandbox(ctx, &criv1.ListPodSandboxRequest{})
	for _, s := range list.GetItems() {
		if s.GetState() != criv1.PodSandboxState_SANDBOX_READY {
			continue
		}
		status, err := c.runtime.PodSandboxStatus(ctx, &criv1.PodSandboxStatusRequest{PodSandboxId: s.GetId()})
		if err == nil && status.GetStatus().GetLinux().GetNamespaces().GetOptions().GetNetwork() == criv1.NamespaceMode_POD {
			toPods--
		}
	}
	if toPods > 0 {
		found["links to no pod"] = fmt.Sprint(toPods)
	}
	return found, err
}

// traceRules are the rules in the node's own network that name us, by either kernel interface.
func (c *cluster) traceRules(ctx context.Context) (map[string]string, error) {
	found := map[string]string{}
	at := fmt.Sprintf("--net=/proc/%d/ns/net", c.node.NodePID)
	for _, args := range [][]string{{"nft", "-s", "list", "ruleset"}, {"ip", "rule"}, {"ip", "-6", "rule"}} {
		out, err := exec.CommandContext(ctx, "nsenter", append([]string{at}, args...)...).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("%v: %w: %s", args, err, out)
		}
		for line := range strings.Lines(string(out)) {
			line = strings.TrimSpace(line)
			if ours := strings.Contains(strings.ToLower(line), "istio"); ours || args[0] == "ip" {
				found[strings.Join(args, " ")+": "+line] = ""
			}
		}
	}
	return found, nil
}

// traceProcesses are processes of our programs and of proxies in containers of pods.
func (c *cluster) traceProcesses(context.Context) (map[string]string, error) {
	found := map[string]string{}
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range all {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		words := strings.Split(string(text), "\x00")
		switch name := filepath.Base(words[0]); name {
		case "haproxy", "envoy", "pilot-agent", "istio-pod-network-controller", "istio-pod-network-cni", "istio-pod-network-wait":
			cgroup, err := os.ReadFile(filepath.Join(filepath.Dir(file), "cgroup"))
			if err == nil && strings.Contains(string(cgroup), "/kubepods") {
				found[strings.TrimSpace(strings.Join(words, " "))] = ""
			}
		}
	}
	return found, err
}

// traceStrays are what is left of pods that are gone: containers of ours, network namespaces, cgroups and directories.
func (c *cluster) traceStrays(ctx context.Context) (map[string]string, error) {
	containers, err := c.runtime.ListContainers(ctx, &criv1.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, one := range containers.GetContainers() {
		if one.GetLabels()["io.kubernetes.container.name"] == managedProxy {
			found["container "+managedProxy+" of "+one.GetLabels()["io.kubernetes.pod.name"]] = one.GetState().String()
		}
	}
	stray, err := c.strayOf(ctx, found)
	if err != nil {
		return nil, err
	}
	return found, errors.Join(c.strayDirectories(stray), c.strayNamespaces(ctx, found))
}

// traceLogs are the logs of pods that are gone.
func (c *cluster) traceLogs(ctx context.Context) (map[string]string, error) {
	found := map[string]string{}
	stray, err := c.strayOf(ctx, found)
	if err != nil {
		return nil, err
	}
	logs, err := filepath.Glob(c.node.NodeRoot + "/var/log/pods/*")
	for _, dir := range logs {
		parts := strings.Split(filepath.Base(dir), "_")
		stray("logs "+filepath.Base(dir), parts[len(parts)-1])
	}
	return found, err
}

// strayOf returns a function that notes something of a pod if that is gone.
func (c *cluster) strayOf(ctx context.Context, found map[string]string) (func(what, uid string), error) {
	pods, err := c.api.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	alive := map[string]bool{}
	for i := range pods.Items {
		p := &pods.Items[i]
		alive[string(p.UID)] = true
		alive[p.Annotations["kubernetes.io/config.hash"]] = true // a static pod's, as the runtime has it
	}
	return func(what, uid string) {
		uid = strings.ReplaceAll(uid, "_", "-")
		if len(uid) >= 32 && !alive[uid] && !alive[strings.ReplaceAll(uid, "-", "")] {
			found[what] = "of a pod that is gone"
		}
	}, nil
}

// strayDirectories calls stray for each directory and cgroup of a pod.
func (c *cluster) strayDirectories(stray func(what, uid string)) error {
	volumes, err := filepath.Glob(c.node.NodeRoot + "/var/lib/kubelet/pods/*")
	for _, dir := range volumes {
		stray("volumes "+filepath.Base(dir), filepath.Base(dir))
	}
	return errors.Join(err, filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if name, isPod := strings.CutPrefix(filepath.Base(path), "pod"); err == nil && entry.IsDir() && isPod {
			stray("cgroup "+path, name)
		}
		return nil // what has gone meanwhile is not left
	}))
}

// strayNamespaces adds network namespaces with a name that belong to no sandbox.
func (c *cluster) strayNamespaces(ctx context.Context, found map[string]string) error {
	list, err := c.runtime.ListPodSandbox(ctx, &criv1.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	used := map[string]bool{}
	for _, s := range list.GetItems() {
		status, err := c.runtime.PodSandboxStatus(ctx, &criv1.PodSandboxStatusRequest{PodSandboxId: s.GetId(), Verbose: true})
		if err != nil {
			continue // it has gone
		}
		if one, err := readSandbox(s.GetId(), status.GetInfo()["info"]); err == nil {
			used[filepath.Base(one.NetNS)] = true
		}
	}
	names, err := filepath.Glob(c.node.NodeRoot + "/run/netns/*")
	for _, name := range names {
		if !used[filepath.Base(name)] {
			found["network namespace "+filepath.Base(name)] = "of no sandbox"
		}
	}
	return err
}
