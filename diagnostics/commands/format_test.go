package commands

import (
	"net/http"
	"strings"
	"testing"

	"istio-pod-network-controller/internal/cmdline"
)

func TestStatus_output_isAsAskedFor(t *testing.T) {
	t.Setenv("KUBECONFIG", kubeconfigOf(t, oneNode(reportedPod("cart", "Initialized", ""), reportedPod("web", "NotRequired", "no proxy"))))
	for output, want := range map[string]string{
		"jsonpath={.pods[*].name}":                                    "cart web",
		"jsonpath=.pods[0].state":                                     "programmed",
		"jsonpath={.nodes[0].none}":                                   "",
		"jsonpath={$.pods[1].name}":                                   "web",
		"custom-columns=NAME:{@.name}":                                "NAME\ncart\nweb\n",
		"custom-columns=NAME:.name,STATE:{.state},WHY:.message":       "NAME  STATE       WHY\ncart  programmed  <none>\nweb   skipped     no proxy\n",
		"jsonpath={range .pods[*]}{.namespace}/{.name}{\"\\n\"}{end}": "shop/cart\nshop/web\n",
	} {
		if code, out, errOut := call(t, "", "status", "-o", output); code != 0 || out != want {
			t.Errorf("%s: code %d, %q, want %q, %s", output, code, out, want, errOut)
		}
	}
}

func TestStatus_partsOfAnIncompleteDocument_sayWhatIsMissing(t *testing.T) {
	server := oneNode(reportedPod("cart", "Initialized", ""))
	server.Forbids = func(resource, namespace string) bool { return resource == "pods" && namespace == "" }
	t.Setenv("KUBECONFIG", kubeconfigOf(t, server))
	for output, want := range map[string]string{"custom-columns=NAME:.name": "NAME\ncart\n", "jsonpath={.pods[*].name}": "cart"} {
		code, out, errOut := call(t, "", "status", "-A", "-o", output)
		if code != cmdline.ExitUnasked || out != want || !strings.Contains(errOut, `not shown: this account lacks the right "list pods"`) {
			t.Errorf("%s: code %d, %q, %q", output, code, out, errOut)
		}
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
	_, out, errOut := call(t, "", "check", "--kubeconfig", file, "-o", "custom-columns=CHECK:.check,LEVEL:.level")
	if !strings.HasPrefix(out, "CHECK ") || !strings.Contains(out, "\nkubernetes-version ") || !strings.Contains(out, " fail\n") {
		t.Errorf("%q, %s", out, errOut)
	}
}
