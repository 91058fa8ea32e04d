package commands

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/diagnostics/check"
	"istio-pod-network-controller/internal/cmdline"
	"istio-pod-network-controller/internal/intent"
)

// apiServer answers every request by a status, but for the paths of answers.
func apiServer(t *testing.T, status int, answers map[string]string) (kubeconfig string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if answer, ok := answers[r.URL.Path]; ok {
			_, _ = w.Write([]byte(answer))
			return
		}
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d,"message":"no"}`, http.StatusText(status), status)
	}))
	t.Cleanup(server.Close)
	return write(t, "kubeconfig", fmt.Sprintf(`
apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: %q}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: t}}]
`, server.URL))
}

func clusterVersion(minor string) map[string]string {
	return map[string]string{"/version": fmt.Sprintf(`{"major":"1","minor":%q,"gitVersion":"v1.%s.0"}`, minor, minor)}
}

func TestCheckEndsWithItsWorstLevel(t *testing.T) {
	for name, tc := range map[string]struct {
		kubeconfig string
		code       int
		want       string // in either output
	}{
		"a cluster that is too old":              {apiServer(t, http.StatusForbidden, clusterVersion("27")), cmdline.ExitError, "older than 1.28"},
		"a cluster of which little can be read":  {apiServer(t, http.StatusForbidden, clusterVersion("36")), cmdline.ExitError, "have the right to list nodes"},
		"a cluster that fails after its version": {apiServer(t, http.StatusInternalServerError, clusterVersion("36")), cmdline.ExitError, "1 ok, 0 warn, 7 fail"},
		"a page to log in":                       {apiServer(t, 0, map[string]string{"/version": "<html>"}), cmdline.ExitError, "is no API server"},
		"expired credentials":                    {apiServer(t, http.StatusUnauthorized, nil), cmdline.ExitError, "does not accept the credentials"},
		"nobody listens":                         {write(t, "kubeconfig", strings.ReplaceAll(text(t, apiServer(t, 0, nil)), "127.0.0.1", "127.0.0.77")), cmdline.ExitError, "cannot be reached"},
		"no kubeconfig":                          {filepath.Join(t.TempDir(), "none"), cmdline.ExitError, "none"},
		"a kubeconfig that is none":              {write(t, "kubeconfig", "{"), cmdline.ExitError, "read kubeconfig"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errOut := call(t, "", "check", "--timeout=5s", "--kubeconfig", tc.kubeconfig)
			if code != tc.code || !strings.Contains(out+errOut, tc.want) {
				t.Errorf("code %d, want %d with %q: %s%s", code, tc.code, tc.want, out, errOut)
			}
		})
	}
}

// A cluster that hangs does not hold who types Ctrl-C, and what was not asked is not taken for fine.
func TestCheckIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	}))
	defer hangs.Close()
	f := checkFlags{kube: kubeFlags{Kubeconfig: &fewFlags{kubeconfig: kubeconfigTo(t, hangs.URL)}}, timeout: time.Minute}
	look, err := f.looker()
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if _, err := look(ctx); err == nil || !strings.Contains(err.Error(), "interrupted") || time.Since(begin) > 5*time.Second {
		t.Errorf("after %s: %v", time.Since(begin), err)
	}
}

// Each check would blame the node for what is wrong with the command.
func TestCheckOfANodeThatIsNotThere(t *testing.T) {
	code, out, errOut := call(t, "", "check", "--node", "--root", filepath.Join(t.TempDir(), "none"))
	if code != cmdline.ExitError || out != "" || !strings.Contains(errOut, "--root: value") {
		t.Errorf("code %d, %q, %q", code, out, errOut)
	}
}

// Another image helps nobody whose cluster is away.
func TestConnectivityTestSaysThatTheClusterIsAway(t *testing.T) {
	for want, kubeconfig := range map[string]string{
		"does not accept the credentials": apiServer(t, http.StatusUnauthorized, nil),
		"cannot be reached":               kubeconfigTo(t, "http://127.0.0.1:1"),
	} {
		code, _, errOut := call(t, "", "connectivity", "test", "--kubeconfig", kubeconfig)
		if code != cmdline.ExitError || !strings.Contains(errOut, want) || strings.Contains(errOut, "--image") {
			t.Errorf("code %d: %s, want %q", code, errOut, want)
		}
		code, out, errOut := call(t, "", "connectivity", "test", "-o", "json", "--image", "x", "--select", "annotation", "--kubeconfig", kubeconfig)
		if code != cmdline.ExitError || !strings.Contains(out, `"proofs": []`) {
			t.Errorf("code %d: %s, %s", code, out, errOut)
		}
	}
}

func TestCheckPrintsJSON(t *testing.T) {
	_, out, _ := call(t, "", "check", "--pre", "-o", "json", "--kubeconfig", apiServer(t, http.StatusForbidden, clusterVersion("27")))
	var report struct {
		Worst   check.Level
		Results []check.Result
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil || report.Worst != check.Fail || report.Results[0].Doc != "docs/check.md#kubernetes-version" {
		t.Errorf("%v: %+v", err, report)
	}
}

// Exit code 0 means that nothing is left, and that all was looked at.
func TestCheck_removal_endsWith0IfNothingIsLeft(t *testing.T) {
	answers := clusterVersion("36")
	for path, kind := range map[string]string{
		"/apis": "APIGroup", "/api": "APIVersions", "/apis/admissionregistration.k8s.io/v1": "APIResource", "/apis/apps/v1/daemonsets": "DaemonSet", "/api/v1/nodes": "Node",
		"/api/v1/namespaces": "Namespace", "/api/v1/pods": "Pod", "/api/v1/events": "Event", "/apis/rbac.authorization.k8s.io/v1/clusterroles": "ClusterRole",
		"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings": "ClusterRoleBinding",
	} {
		version := strings.TrimPrefix(strings.TrimPrefix(filepath.Dir(path), "/apis/"), "/api/")
		answers[path] = fmt.Sprintf(`{"kind":"%sList","apiVersion":%q,"items":[],"groups":[],"resources":[]}`, kind, version)
	}
	code, out, errOut := call(t, "", "check", "--removal", "--kubeconfig", apiServer(t, http.StatusNotFound, answers))
	if code != 0 || !strings.Contains(out, "8 ok, 0 warn, 0 fail") {
		t.Errorf("code %d: %s%s", code, out, errOut)
	}
	answers["/api/v1/namespaces"] = `{"kind":"NamespaceList","apiVersion":"v1","items":[{"metadata":{"name":"istio-pod-network-controller"}}]}`
	code, out, _ = call(t, "", "check", "--removal", "--kubeconfig", apiServer(t, http.StatusNotFound, answers))
	if code != cmdline.ExitError || !strings.Contains(out, "kubectl delete namespace istio-pod-network-controller") {
		t.Errorf("with a namespace: code %d: %s", code, out)
	}
	if code, out, _ = call(t, "", "check", "--removal", "--kubeconfig", apiServer(t, http.StatusForbidden, clusterVersion("36"))); code != cmdline.ExitError {
		t.Errorf("without rights: code %d: %s", code, out)
	}
}

func TestCheckAndConnectivityRefuseBadFlags(t *testing.T) {
	for line, want := range map[string]string{
		"check -o xml":                     `--output: value "xml"`,
		"check --timeout -1s":              `--timeout: value "-1s"`,
		"check --node --pre":               "--pre",
		"check --pre --removal":            "--removal: it goes together with neither",
		"logs":                             "want one pod and not 0: istio-pod-network-controller logs [NAMESPACE/]POD",
		"check something":                  "something",
		"connectivity test --nodes 0":      `--nodes: value "0"`,
		"connectivity test --nodes ../x":   "../x",
		"connectivity test --timeout 0s":   `--timeout: value "0s"`,
		"connectivity test -n Kube_System": `--namespace: value "Kube_System"`,
		"connectivity test --select all":   `--select: value "all"`,
		"connectivity test -o yaml":        `--output: value "yaml"`,
		"connectivity tset":                "did you mean test?",
		"connectivity test --wait 0s":      `--wait: value "0s"`,
	} {
		if code, _, errOut := call(t, "", strings.Fields(line)...); code != cmdline.ExitError || !strings.Contains(errOut, want) {
			t.Errorf("%s: code %d, said %q, want %q", line, code, errOut, want)
		}
	}
}

// Without an agent there is no image to take.
func TestConnectivityTestNeedsAnImage(t *testing.T) {
	kubeconfig := apiServer(t, http.StatusForbidden, map[string]string{"/api/v1/pods": `{"kind":"PodList","apiVersion":"v1","items":[]}`})
	code, _, errOut := call(t, "", "connectivity", "test", "--kubeconfig", kubeconfig)
	if code != cmdline.ExitError || !strings.Contains(errOut, "there is no agent") || !strings.Contains(errOut, "name one by --image") {
		t.Errorf("code %d: %s", code, errOut)
	}
}

// An agent of another release may have flags that are not known here.
func TestTheAgentsFlagsAreRead(t *testing.T) {
	config, err := intentOf([]string{"run", "--node-name=$(NODE_NAME)", "--select=injected", "--exclude-namespaces=a,b", "--of-tomorrow=yes", "--interception-mode=TPROXY"})
	if err != nil || config.Select != intent.SelectInjected || len(config.ExcludedNamespaces) != 2 || config.Defaults["interception-mode"] != "TPROXY" {
		t.Errorf("%+v, %v", config, err)
	}
}
