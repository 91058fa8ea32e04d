package istio

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"
	"istio.io/istio/pilot/cmd/pilot-agent/app"
	istioagent "istio.io/istio/pkg/istio-agent"
	"istio.io/istio/pkg/security"
	"istio.io/istio/security/pkg/nodeagent/sds"

	"istio-pod-network-controller/test/e2e/xdsenvoy"
)

// TestMain makes of the test's program also those that it starts: the real pilot-agent, and the stand-in for Envoy, which pilot-agent starts.
func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case "pilot-agent":
		command := app.NewRootCommand(func(o *security.Options, s security.SecretManager, p *meshconfig.PrivateKeyProvider) istioagent.SDSService {
			return sds.NewServer(o, s, p)
		})
		if err := command.Execute(); err != nil {
			os.Exit(1)
		}
	case "envoy":
		os.Exit(envoy())
	default:
		os.Exit(m.Run())
	}
}

func envoy() int {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	options, err := xdsenvoy.ParseOptions(os.Args[1:])
	if err == nil {
		ctx, stop := context.WithCancel(context.Background()) //nolint:usetesting // of a program
		defer stop()
		err = xdsenvoy.Run(ctx, options, log)
	}
	if err != nil {
		log.Error("ended", "error", err)
		return 1
	}
	return 0
}

// programs copies the test's program, and the bootstrap's template of Istio's source, for the proxies' user.
func programs(t *testing.T) string {
	t.Helper()
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { //nolint:gosec // another user's programs
		t.Fatal(err)
	}
	from, err := os.Open(own)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()                                                                        //nolint:errcheck // it was read
	to, err := os.OpenFile(filepath.Join(dir, "pilot-agent"), os.O_CREATE|os.O_WRONLY, 0o755) //nolint:gosec // another user's program
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(to.Name(), filepath.Join(dir, "envoy")); err != nil {
		t.Fatal(err)
	}
	source, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "istio.io/istio").Output()
	if err != nil {
		t.Fatal(err)
	}
	template, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(source)), "tools/packaging/common/envoy_bootstrap.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bootstrap.json"), template, 0o644); err != nil { //nolint:gosec // another user's
		t.Fatal(err)
	}
	return dir
}
