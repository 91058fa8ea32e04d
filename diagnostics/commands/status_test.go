package commands

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/yaml"

	"istio-pod-network-controller/diagnostics/cluster"
	"istio-pod-network-controller/diagnostics/survey"
	"istio-pod-network-controller/internal/cmdline"
	"istio-pod-network-controller/test/standins/apistandin"
)

func TestStatusShowsNodesAndPods(t *testing.T) {
	fine, failed := reportedPod("cart", "Initialized", "traffic is redirected"), reportedPod("web-with-a-long-name", "RedirectFailed", "no\nsuch table")
	code, out, errOut := call(t, "", "status", "--kubeconfig", kubeconfigOf(t, oneNode(fine, failed)))
	want := `NODE AGENT BACKEND HOOKS PODS TROUBLE
node VERSION nftables watch,nri(down) 1 failed, 1 programmed nri is down: away; no early hook: pods start before their rules are there

NAMESPACE NAME NODE STATE HOOK AGE MESSAGE
shop cart node programmed nri 60m -
shop web-with-a-long-name node failed nri 60m no such table

2 pods in namespace shop: 1 failed, 1 programmed.
`
	got := regexp.MustCompile(` +`).ReplaceAllString(strings.Replace(out, cmdline.Build().Version, "VERSION", 1), " ")
	if diff := cmp.Diff(want, got); diff != "" || code != cmdline.ExitError || errOut != "" {
		t.Errorf("code %d, %s (-want +got):\n%s", code, errOut, diff)
	}
	lines := strings.Split(out, "\n")
	if at := strings.Index(lines[3], "NODE"); at < 0 || strings.Index(lines[4], "node") != at || strings.Index(lines[5], "node") != at {
		t.Errorf("the columns are not aligned:\n%s", out)
	}
}

func TestStatusExitsWith0IfAllIsWell(t *testing.T) {
	code, out, errOut := call(t, "", "status", "-A", "-o", "wide", "--kubeconfig", kubeconfigOf(t, oneNode(reportedPod("cart", "Initialized", ""))))
	for _, want := range []string{"mesh/agent", "abc", "cafe", "REPORTED", "1 pod in all namespaces: 1 programmed."} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if code != 0 || errOut != "" {
		t.Errorf("code %d: %s", code, errOut)
	}
	code, out, _ = call(t, "", "status", "--kubeconfig", kubeconfigOf(t, oneNode()))
	if code != 0 || !strings.Contains(out, "No pod in namespace shop asks for redirection") {
		t.Errorf("without pods: code %d, %s", code, out)
	}
}

func TestStatus_problems_areShownAlone(t *testing.T) {
	file := kubeconfigOf(t, oneNode(reportedPod("cart", "Initialized", ""), reportedPod("web", "RedirectFailed", "no such table")))
	code, out, errOut := call(t, "", "status", "--problems", "--kubeconfig", file)
	if code != cmdline.ExitError || strings.Contains(out, "cart") || !strings.Contains(out, "no such table") || errOut != "" ||
		!strings.HasSuffix(out, "2 pods in namespace shop: 1 failed, 1 programmed. Problems: 1 pod, 0 nodes.\n") {
		t.Errorf("code %d, %s%s", code, out, errOut)
	}
	_, out, _ = call(t, "", "status", "--problems", "-o", "jsonpath={.pods[*].name}", "--kubeconfig", file)
	if out != "web" {
		t.Errorf("for machines: %q", out)
	}
	code, out, _ = call(t, "", "status", "--problems", "--kubeconfig", kubeconfigOf(t, oneNode(reportedPod("cart", "Initialized", ""))))
	if code != 0 || out != "1 pod in namespace shop: 1 programmed. Problems: 0 pods, 0 nodes.\n" {
		t.Errorf("without any: code %d, %q", code, out)
	}
}

// Silence about pods that may not be looked at is not taken for health.
func TestStatusThatMayNotSeeAllPodsSaysSo(t *testing.T) {
	s := oneNode(reportedPod("cart", "Initialized", ""))
	s.Forbids = func(resource, namespace string) bool { return resource == "pods" && namespace == "" }
	file := kubeconfigOf(t, s)
	code, out, _ := call(t, "", "status", "-A", "--agent-namespace=mesh", "--kubeconfig", file)
	if code != cmdline.ExitUnasked || !strings.Contains(out, "not shown: this account lacks the right \"list pods\" for the whole cluster") {
		t.Errorf("code %d, %s", code, out)
	}
	if code, out, _ = call(t, "", "status", "--agent-namespace=mesh", "--kubeconfig", file); code != 0 || strings.Contains(out, "not shown") {
		t.Errorf("in one namespace: code %d, %s", code, out)
	}
}

func TestStatusForMachines(t *testing.T) {
	file := kubeconfigOf(t, oneNode(reportedPod("cart", "RedirectFailed", "no such table")))
	for format, decode := range map[string]func([]byte, any) error{
		"json": json.Unmarshal,
		"yaml": func(data []byte, into any) error { return yaml.UnmarshalStrict(data, into) },
	} {
		code, out, errOut := call(t, "", "status", "-o", format, "--kubeconfig", file)
		var r survey.Report
		if err := decode([]byte(out), &r); err != nil {
			t.Fatalf("%s: %v: %s", format, err, out)
		}
		if code != cmdline.ExitError || errOut != "" || len(r.Nodes) != 1 || len(r.Pods) != 1 || r.Pods[0].State != survey.Failed || r.Nodes[0].Status.Version != cmdline.Build().Version {
			t.Errorf("%s: code %d, %s, %+v", format, code, errOut, r)
		}
	}
}

// A pod's owner writes what is shown. None of it may reach the terminal as a command.
func TestStatusShowsNoCommandsOfATerminal(t *testing.T) {
	evil := reportedPod("cart", "RedirectFailed", "\x1b]0;owned\x07\x1b[2J\u202eevil\u0085")
	_, out, _ := call(t, "", "status", "--kubeconfig", kubeconfigOf(t, oneNode(evil)))
	if strings.ContainsAny(out, "\x1b\x07\u202e\u0085") || !strings.Contains(out, "?]0;owned??[2J?evil") {
		t.Errorf("%q", out)
	}
}

// Each is a message that says what is wrong and what to do, and never exit code 0.
func TestStatusSaysWhyItCannotAsk(t *testing.T) {
	fails := func(err *apierrors.StatusError) http.Handler {
		// Each answer is written into while it is encoded.
		return &apistandin.Server{Fails: func(*http.Request) *apierrors.StatusError {
			return &apierrors.StatusError{ErrStatus: *err.ErrStatus.DeepCopy()}
		}}
	}
	expired := kubeconfigOf(t, fails(apierrors.NewUnauthorized("Unauthorized")))
	forbidden := kubeconfigOf(t, &apistandin.Server{Forbids: func(string, string) bool { return true }})
	closed := httptest.NewServer(nil)
	closed.Close()
	ok := kubeconfigOf(t, oneNode())
	tls := httptest.NewTLSServer(nil)
	t.Cleanup(tls.Close)
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"a kubeconfig that is not there":    {[]string{"--kubeconfig=/none/config"}, []string{"/none/config", "no such file"}},
		"a kubeconfig that is none":         {[]string{"--kubeconfig", write(t, "config", "a: [")}, []string{"read kubeconfig"}},
		"a context that is not there":       {[]string{"--kubeconfig", ok, "--context=other"}, []string{"other"}},
		"credentials that have expired":     {[]string{"--kubeconfig", expired}, []string{"does not accept the credentials", "log in again"}},
		"no rights at all":                  {[]string{"--kubeconfig", forbidden}, []string{"forbidden", "config/samples/status-reader.yaml"}},
		"nobody listens":                    {[]string{"--kubeconfig", kubeconfigTo(t, closed.URL)}, []string{closed.URL, "cannot be reached", "connection refused", "--context"}},
		"a name that is not known":          {[]string{"--kubeconfig", kubeconfigTo(t, "http://api.invalid")}, []string{"api.invalid", "cannot be reached"}},
		"a server with another certificate": {[]string{"--kubeconfig", kubeconfigTo(t, tls.URL)}, []string{"certificate", "right cluster"}},
		"an expired login of a provider":    {[]string{"--kubeconfig", failingLogin(t)}, []string{"names for credentials gives none", "log in again", "false failed with exit code 1"}},
		"a namespace that is not there":     {[]string{"--kubeconfig", ok, "-n", "none"}, []string{`namespace "none" does not exist`}},
		"a node that is not there":          {[]string{"--kubeconfig", ok, "--node", "none"}, []string{`node "none" does not exist`}},
		"a namespace that cannot be":        {[]string{"--kubeconfig", ok, "-n", "a/b"}, []string{"--namespace", `"a/b"`}},
		"a node that cannot be":             {[]string{"--kubeconfig", ok, "--node", "a,b"}, []string{"--node", `"a,b"`}},
		"a wrong selector":                  {[]string{"--kubeconfig", ok, "-l", "a in"}, []string{"--selector", `"a in"`}},
		"a wrong format":                    {[]string{"-o", "xml"}, []string{"--output", `"xml"`, "wide, json, yaml, jsonpath=PATH or custom-columns="}},
		"one namespace and all":             {[]string{"-A", "-n", "shop"}, []string{"all-namespaces", "namespace"}},
		"a pod instead of a flag":           {[]string{"--kubeconfig", ok, "shop/cart"}, []string{`"shop/cart"`, "takes no arguments", "kubectl pod-network inspect shows one pod"}},
		"a mistyped flag":                   {[]string{"--all-namespace"}, []string{"did you mean --all-namespaces?"}},
	} {
		code, out, errOut := call(t, "", append([]string{"status"}, c.args...)...)
		if code == 0 || out != "" || !strings.HasPrefix(errOut, "error: ") || strings.Count(errOut, "\n") != 1 {
			t.Errorf("%s: code %d, %q, %q", name, code, out, errOut)
		}
		for _, want := range c.want {
			if !strings.Contains(errOut, want) {
				t.Errorf("%s: %q does not say %q", name, errOut, want)
			}
		}
		if code != cmdline.ExitUnasked {
			t.Errorf("%s: code %d, want %d", name, code, cmdline.ExitUnasked)
		}
	}
}

// failingLogin is a kubeconfig whose command for credentials fails, as those of hosted clusters do once a login has expired.
func failingLogin(t *testing.T) string {
	t.Helper()
	return writeKubeconfig(t, "https://127.0.0.1:1", `{exec: {apiVersion: client.authentication.k8s.io/v1, command: "false", interactiveMode: Never}}`)
}

// A machine without any kubeconfig.
func TestStatusWithoutACluster(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	code, _, errOut := call(t, "", "status")
	if code != cmdline.ExitUnasked || !strings.Contains(errOut, "no cluster to ask") {
		t.Errorf("code %d: %s", code, errOut)
	}
}

// A server that takes connections and says nothing is waited for as long as one request may take.
func TestAClusterThatDoesNotAnswer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	ended := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-ended }))
	defer silent.Close()
	defer close(ended)
	config := &rest.Config{Host: silent.URL}
	client, err := cluster.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	_, err = survey.Ask(ctx, client, survey.Options{})
	if err = clusterError(config, err); err == nil || !strings.Contains(err.Error(), silent.URL+" did not answer in time") {
		t.Error(err)
	}
}

// The time may be over between two requests, which the client's rate limiter alone notices.
func TestAClusterThatHasAnsweredTooLate(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	limiter := flowcontrol.NewTokenBucketRateLimiter(1.0/3600, 1)
	limiter.Accept()
	err := fmt.Errorf("list nodes: client rate limiter Wait returned an error: %w", limiter.Wait(ctx))
	if !unasked(err) {
		t.Errorf("not unasked: %v", err)
	}
	if got := clusterError(&rest.Config{Host: "https://a"}, err).Error(); !strings.Contains(got, "https://a did not answer in time") {
		t.Error(got)
	}
}

func TestNamesForShells(t *testing.T) {
	server := oneNode()
	server.JSON = true // as it is asked to
	for i := range 2 * cluster.PageSize {
		server.Nodes = append(server.Nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("worker-", i)}})
	}
	t.Setenv("KUBECONFIG", kubeconfigOf(t, server))
	for line, want := range map[string]string{
		"status --namespace ":      "shop\n",
		"status --namespace x":     "",
		"status --node n":          "node\n",
		"status --node worker-998": "worker-998\n",
		"status --output ":         "wide\njson\nyaml\n",
	} {
		args := strings.Split(line, " ")
		code, out, errOut := call(t, "", append([]string{"__complete"}, args...)...)
		if code != 0 || !strings.HasPrefix(out, want+":4") {
			t.Errorf("%q: code %d, %q, %q", line, code, out, errOut)
		}
	}
	t.Setenv("KUBECONFIG", "/none")
	if code, out, _ := call(t, "", "__complete", "status", "--namespace", ""); code != 0 || !strings.HasPrefix(out, ":4") {
		t.Errorf("without a cluster: code %d, %q", code, out)
	}
}
