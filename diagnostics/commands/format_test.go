package commands

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/cmdline"
	"istio-pod-network-controller/test/terminal"
)

func TestStatus_output_isAsAskedFor(t *testing.T) {
	t.Setenv("KUBECONFIG", kubeconfigOf(t, oneNode(reportedPod("cart", "Initialized", ""), reportedPod("web", "NotRequired", "no proxy"))))
	for output, want := range map[string]string{
		"jsonpath={.pods[*].name}":                                    "cart web",
		"jsonpath=.pods[0].state":                                     "programmed",
		"jsonpath={.nodes[0].none}":                                   "",
		"custom-columns=NAME:.name,STATE:{.state},WHY:.message":       "NAME  STATE       WHY\ncart  programmed  <none>\nweb   skipped     no proxy\n",
		"custom-columns=NAME:.name,RULES:.specHash --no-headers":      "cart  cafe\nweb   cafe\n",
		"jsonpath={range .pods[*]}{.namespace}/{.name}{\"\\n\"}{end}": "shop/cart\nshop/web\n",
	} {
		output, flag, _ := strings.Cut(output, " --")
		args := []string{"status", "-o", output}
		if flag != "" {
			args = append(args, "--"+flag)
		}
		if code, out, errOut := call(t, "", args...); code != 0 || out != want {
			t.Errorf("%s: code %d, %q, want %q, %s", output, code, out, want, errOut)
		}
	}
	code, out, _ := call(t, "", "status", "--no-headers")
	if code != 0 || strings.Contains(out, "NODE") || strings.Contains(out, "NAMESPACE") || !strings.HasPrefix(out, "node ") {
		t.Errorf("code %d, %q", code, out)
	}
}

func TestOutput_wrong_isAnError(t *testing.T) {
	t.Setenv("KUBECONFIG", kubeconfigOf(t, oneNode()))
	for output, want := range map[string]string{
		"jsonpath={.pods[":    "jsonpath",
		"custom-columns=NAME": "want HEAD:PATH",
		"custom-columns=":     "want HEAD:PATH",
		"xml":                 "jsonpath=PATH or custom-columns=HEAD:PATH",
	} {
		for _, command := range []string{"status", "check"} {
			if code, out, errOut := call(t, "", command, "-o", output); code == 0 || out != "" || !strings.Contains(errOut, want) {
				t.Errorf("%s %s: code %d, %q, %q", command, output, code, out, errOut)
			}
		}
	}
}

func TestCheck_columns_haveARowForEachCheck(t *testing.T) {
	file := apiServer(t, http.StatusForbidden, clusterVersion("27"))
	_, out, errOut := call(t, "", "check", "--kubeconfig", file, "-o", "custom-columns=CHECK:.check,LEVEL:.level", "--no-headers")
	if !strings.HasPrefix(out, "kubernetes-version ") || !strings.Contains(out, " fail\n") {
		t.Errorf("%q, %s", out, errOut)
	}
}

// A cluster that becomes well ends the wait, the end of the time does, too.
func TestCheck_wait_endsWhenNothingFails(t *testing.T) {
	minor := new(atomic.Int64)
	minor.Store(26)
	file := kubeconfigOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path != "/version" {
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"no"}`))
			return
		}
		_, _ = w.Write([]byte(clusterVersion(map[bool]string{true: "36", false: "27"}[minor.Add(1) > 28])["/version"]))
	}))
	f := checkFlags{kube: kubeFlags{Kubeconfig: &fewFlags{kubeconfig: file}}, timeout: time.Minute, pre: true}
	first, err := f.waited(t.Context(), time.Millisecond)
	if err != nil || first[0].Level != "fail" {
		t.Fatalf("without --wait: %+v, %v", first, err)
	}
	f.wait = true
	last, err := f.waited(t.Context(), time.Millisecond)
	if err != nil || last[0].Level == "fail" || minor.Load() < 29 {
		t.Errorf("after %d looks: %+v, %v", minor.Load()-26, last[0], err)
	}
	code, out, _ := call(t, "", "check", "--wait", "--timeout", "1ms", "--kubeconfig", kubeconfigTo(t, "http://127.0.0.1:1"))
	if code != cmdline.ExitError || out != "" {
		t.Errorf("code %d, %q", code, out)
	}
}

func TestBugReport_archive_isWrittenOnce(t *testing.T) {
	server := oneNode(reportedPod("cart", "Initialized", ""))
	file := kubeconfigOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/version" {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(clusterVersion("36")["/version"]))
			return
		}
		server.ServeHTTP(w, r)
	}))
	to := filepath.Join(t.TempDir(), "report.tar.gz")
	code, out, errOut := call(t, "", "bugreport", "--kubeconfig", file, "--file", to)
	info, err := os.Stat(to)
	if code != 0 || out != "" || err != nil || info.Size() == 0 || info.Mode().Perm() != 0o600 {
		t.Fatalf("code %d, %q, %v, %s", code, out, err, errOut)
	}
	if !strings.Contains(errOut, "not read: logs/mesh-agent.log: ") || !strings.Contains(errOut, "files in "+to) {
		t.Errorf("%q", errOut)
	}
	if code, _, errOut := call(t, "", "bugreport", "--kubeconfig", file, "--file", to); code != cmdline.ExitError || !strings.Contains(errOut, "--file: ") {
		t.Errorf("a file that exists: code %d, %q", code, errOut)
	}
	code, out, _ = call(t, "", "bugreport", "--kubeconfig", file, "--file", "-")
	if code != 0 || !strings.HasPrefix(out, "\x1f\x8b") {
		t.Errorf("through a pipe: code %d, %.20q", code, out)
	}
	if code, _, errOut := call(t, "", "bugreport", "--kubeconfig", kubeconfigTo(t, "http://127.0.0.1:1")); code != cmdline.ExitError || !strings.Contains(errOut, "cannot be reached") {
		t.Errorf("no cluster: code %d, %q", code, errOut)
	}
}

// A line that wraps could not be removed.
func TestProgress_narrowTerminal_hasOneRow(t *testing.T) {
	master, slave := terminal.Open(t)
	if err := unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 40}); err != nil {
		t.Fatal(err)
	}
	p := startProgress(slave, "asking https://a.rather.long.name.of.an.api.server.example.com:6443")
	p.show(true)
	p.stop()
	got := make([]byte, 200)
	n, err := master.Read(got)
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(strings.TrimPrefix(string(got[:n]), "\r\x1b[K"), "\r")
	if len(line) != 39 || !strings.HasPrefix(line, "asking https://a.rather") {
		t.Errorf("%d columns: %q", len(line), line)
	}
}
