package cli

import (
	"bytes"
	"errors"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"istio-pod-network-controller/agent"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/test/standins/apistandin"
)

// kubectl runs kubectl-pod_network for `kubectl pod-network`; what users then read is what they can type.
func TestTheProgramAsAKubectlPlugin(t *testing.T) {
	for program, want := range map[string]string{
		"/usr/local/bin/kubectl-pod_network": "kubectl pod-network",
		"kubectl-pod_network":                "kubectl pod-network",
		"./istio-pod-network-controller":     agent.Name,
		"/istio-pod-network-controller":      agent.Name,
	} {
		var out, errOut bytes.Buffer
		if code := Main(program, []string{"status", "--help"}, nil, &out, &errOut); code != 0 || !strings.Contains(out.String(), "\n  "+want+" status [flags]") {
			t.Errorf("%s: code %d, %s%s", program, code, out.String(), errOut.String())
		}
		if !strings.Contains(out.String(), "\n  "+want+" status -A") {
			t.Errorf("%s: the examples are not what is typed: %s", program, out.String())
		}
		out.Reset()
		if code := Main(program, []string{"stauts"}, nil, &out, &errOut); code != exitError || !strings.Contains(errOut.String(), `for "`+want+`": did you mean status?`) {
			t.Errorf("%s: code %d, %s", program, code, errOut.String())
		}
	}
}

func TestCompletionForShells(t *testing.T) {
	for shell, want := range map[string]string{"bash": "complete -o", "zsh": "#compdef", "fish": "complete -c"} {
		code, out, errOut := call(t, "", "completion", shell)
		if code != 0 || !strings.Contains(out, want) || errOut != "" {
			t.Errorf("%s: code %d, %.100q, %s", shell, code, out, errOut)
		}
	}
	if code, out, errOut := call(t, "", "completion", "bsh"); code != exitError || out != "" || !strings.Contains(errOut, "did you mean bash") {
		t.Errorf("no shell: code %d, %.100q, %q", code, out, errOut)
	}
	code, out, _ := call(t, "", "__complete", "sta")
	if code != 0 || !strings.HasPrefix(out, "status\t") {
		t.Errorf("code %d, %q", code, out)
	}
}

func TestAMistypedFlagIsAnErrorWithTheNearest(t *testing.T) {
	for line, want := range map[string]string{
		"run --node-nam=a":     "unknown flag: --node-nam: did you mean --node-name?",
		"run --verify-intervl": "did you mean --verify-interval?",
		"status --wacth":       "did you mean --watch?",
		"status --bogus":       "unknown flag: --bogus: see istio-pod-network-controller status --help",
		"status -Z":            "unknown shorthand flag: 'Z'",
		"status --node":        "flag needs an argument: --node",
		"--verion":             "did you mean --version?",
	} {
		code, out, errOut := call(t, "", strings.Fields(line)...)
		if code == 0 || out != "" || !strings.Contains(errOut, want) {
			t.Errorf("%s: code %d, %q, want %q", line, code, errOut, want)
		}
	}
}

func TestDistance(t *testing.T) {
	for words, want := range map[[2]string]int{
		{"", ""}: 0, {"abc", "abc"}: 0, {"abc", ""}: 3, {"", "abc"}: 3, {"watch", "wacth"}: 2, {"node", "nodes"}: 1, {"kitten", "sitting"}: 3,
	} {
		if got := intent.Distance(words[0], words[1]); got != want {
			t.Errorf("%v: %d, want %d", words, got, want)
		}
	}
}

func TestVersionShowsTheAgents(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	cluster := kubeconfigOf(t, oneNode())
	own := version() + "\n"
	failing := kubeconfigOf(t, &apistandin.Server{Fails: func(*http.Request) *apierrors.StatusError { return apierrors.NewUnauthorized("no") }})
	for name, c := range map[string]struct {
		kubeconfig, flags string
		wantCode          int
		wantOut, wantErr  string
	}{
		"with a cluster":                    {cluster, "", 0, own + "agents: " + build().Version + " (abc), on 1 node\n", ""},
		"with a cluster, without asking it": {cluster, "--client", 0, own, ""},
		"without a cluster":                 {"/none", "", 0, own, ""},
		"without a cluster that is wanted":  {"/none", "--agents", exitUnasked, own, "no cluster to ask"},
		"with expired credentials":          {failing, "", 0, own, ""},
		"with expired credentials, wanted":  {failing, "--agents", exitUnasked, own, "does not accept the credentials"},
		"without agents":                    {kubeconfigOf(t, &apistandin.Server{}), "--agents", exitError, own, "the cluster has no agent"},
	} {
		t.Setenv("KUBECONFIG", c.kubeconfig)
		code, out, errOut := call(t, "", strings.Fields("version "+c.flags)...)
		if code != c.wantCode || out != c.wantOut || !strings.Contains(errOut, c.wantErr) || c.wantErr == "" && errOut != "" {
			t.Errorf("%s: code %d, %q, %q", name, code, out, errOut)
		}
	}
}

// docs/commands.md lists the exit codes, and codeOf returns them.
func TestExitCodesAreThoseOfTheDocs(t *testing.T) {
	page := text(t, filepath.Join(root, "docs", "commands.md"))
	want := []string{"0", strconv.Itoa(exitError), strconv.Itoa(exitUnasked), strconv.Itoa(exitDrift)}
	if diff := cmp.Diff(want, every("(?m)^\\| ([0-9]+) \\| ", page)); diff != "" {
		t.Errorf("docs/commands.md (-code +docs):\n%s", diff)
	}
	some := errors.New("some")
	for err, want := range map[error]struct {
		code int
		said string
	}{
		nil:                {0, ""},
		some:               {exitError, "error: some\n"},
		exitCode(7):        {7, ""},
		unaskedError{some}: {exitUnasked, "error: some\n"},
	} {
		var errOut bytes.Buffer
		if got := codeOf(err, &errOut); got != want.code || errOut.String() != want.said {
			t.Errorf("%v: code %d, %q, want %d, %q", err, got, errOut.String(), want.code, want.said)
		}
	}
}

// Every subcommand has a section, or a page of its own.
func TestEveryCommandIsDescribed(t *testing.T) {
	page := text(t, filepath.Join(root, "docs", "commands.md"))
	for _, cmd := range newRoot().Commands() {
		if cmd.IsAvailableCommand() && !strings.Contains(page, "`"+cmd.Name()) {
			t.Errorf("docs/commands.md does not name %s", cmd.Name())
		}
	}
}
