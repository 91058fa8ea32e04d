package commands

import (
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"istio-pod-network-controller/internal/cmdline"
	"istio-pod-network-controller/test/standins/apistandin"
)

func TestVersionShowsTheAgents(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	cluster := kubeconfigOf(t, oneNode())
	own := cmdline.Version() + "\n"
	failing := kubeconfigOf(t, &apistandin.Server{Fails: func(*http.Request) *apierrors.StatusError { return apierrors.NewUnauthorized("no") }})
	for name, c := range map[string]struct {
		kubeconfig, flags string
		wantCode          int
		wantOut, wantErr  string
	}{
		"with a cluster":                    {cluster, "", 0, own + "agents: " + cmdline.Build().Version + " (abc), on 1 node\n", ""},
		"with a cluster, without asking it": {cluster, "--client", 0, own, ""},
		"without a cluster":                 {"/none", "", 0, own, ""},
		"without a cluster that is wanted":  {"/none", "--agents", cmdline.ExitUnasked, own, "no cluster to ask"},
		"with expired credentials":          {failing, "", 0, own, ""},
		"with expired credentials, wanted":  {failing, "--agents", cmdline.ExitUnasked, own, "does not accept the credentials"},
		"without agents":                    {kubeconfigOf(t, &apistandin.Server{}), "--agents", cmdline.ExitError, own, "the cluster has no agent"},
	} {
		t.Setenv("KUBECONFIG", c.kubeconfig)
		code, out, errOut := call(t, "", strings.Fields("version "+c.flags)...)
		if code != c.wantCode || out != c.wantOut || !strings.Contains(errOut, c.wantErr) || c.wantErr == "" && errOut != "" {
			t.Errorf("%s: code %d, %q, %q", name, code, out, errOut)
		}
	}
}
