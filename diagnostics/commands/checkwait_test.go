package commands

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/diagnostics/check"
	"istio-pod-network-controller/internal/cmdline"
	"istio-pod-network-controller/test/kerneltest"
)

func TestCheck_wait_endsWhenNothingFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks, began := 0, time.Now()
		answers := []func() ([]check.Result, error){
			func() ([]check.Result, error) { return nil, errors.New("away") },
			func() ([]check.Result, error) { return []check.Result{{Level: check.Fail}}, nil },
			func() ([]check.Result, error) { return []check.Result{{Level: check.Warn}}, nil },
		}
		got, err := untilWell(t.Context(), waitEvery, func(context.Context) ([]check.Result, error) { looks++; return answers[looks-1]() })
		if err != nil || len(got) != 1 || got[0].Level != check.Warn || looks != 3 || time.Since(began) != 2*waitEvery {
			t.Errorf("after %d looks and %s: %+v, %v", looks, time.Since(began), got, err)
		}
	})
}

// The results of a look that the end of the time has cut short would blame the cluster.
func TestCheck_waitInVain_returnsTheLastWholeLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), waitEvery+time.Second)
		defer cancel()
		whole := []check.Result{{Level: check.Fail, Message: "whole"}}
		got, err := untilWell(ctx, waitEvery, func(ctx context.Context) ([]check.Result, error) {
			if time.Until(deadlineOf(ctx)) > time.Second {
				return whole, nil
			}
			<-ctx.Done()
			return nil, ctx.Err()
		})
		if err != nil || len(got) != 1 || got[0].Message != "whole" {
			t.Errorf("%+v, %v", got, err)
		}
	})
	code, out, _ := call(t, "", "check", "--wait", "--timeout", "1ms", "--kubeconfig", kubeconfigTo(t, "http://127.0.0.1:1"))
	if code != cmdline.ExitError || out != "" {
		t.Errorf("code %d, %q", code, out)
	}
}

func TestCheck_waitWithoutAKubeconfig_endsAtOnce(t *testing.T) {
	began := time.Now()
	code, _, errOut := call(t, "", "check", "--wait", "--timeout", "20s", "--kubeconfig", filepath.Join(t.TempDir(), "none"))
	if code != cmdline.ExitError || !strings.Contains(errOut, "no such file") || time.Since(began) > 15*time.Second {
		t.Errorf("after %s: code %d, %q", time.Since(began), code, errOut)
	}
}

func deadlineOf(ctx context.Context) time.Time {
	at, _ := ctx.Deadline()
	return at
}

// reportable returns the kubeconfig of a cluster with a pod.
func reportable(t *testing.T) (kubeconfig string) {
	t.Helper()
	server := oneNode(reportedPod("cart", "Initialized", ""))
	return kubeconfigOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/version" {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(clusterVersion("36")["/version"]))
			return
		}
		server.ServeHTTP(w, r)
	}))
}

// Half a report would be in the way of the next one.
func TestBugReport_noRoom_leavesNoFile(t *testing.T) {
	if os.Geteuid() != 0 {
		kerneltest.SkipOrFail(t, "mounts need root; this is uid %d", os.Geteuid())
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=4k"); err != nil {
		kerneltest.SkipOrFail(t, "mount tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if err := os.WriteFile(filepath.Join(dir, "full"), make([]byte, 4<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, "report.tar.gz")
	code, _, errOut := call(t, "", "bugreport", "--kubeconfig", reportable(t), "--file", to)
	if _, err := os.Stat(to); code != cmdline.ExitError || !strings.Contains(errOut, "no space left") || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("code %d, %q, file: %v", code, errOut, err)
	}
}

func TestBugReport_archive_isWrittenOnce(t *testing.T) {
	file := reportable(t)
	to := filepath.Join(t.TempDir(), "report.tar.gz")
	code, out, errOut := call(t, "", "bugreport", "--kubeconfig", file, "--file", to)
	info, err := os.Stat(to)
	if code != 0 || out != "" || err != nil || info.Size() == 0 || info.Mode().Perm() != 0o600 {
		t.Fatalf("code %d, %q, %v, %s", code, out, err, errOut)
	}
	if !strings.Contains(errOut, "not read: daemonsets-mesh.json: ") || !strings.Contains(errOut, "files in "+to) {
		t.Errorf("%q", errOut)
	}
	if code, _, errOut := call(t, "", "bugreport", "--kubeconfig", file, "--file", to); code != cmdline.ExitError || !strings.Contains(errOut, "--file: ") {
		t.Errorf("a file that exists: code %d, %q", code, errOut)
	}
	code, out, _ = call(t, "", "bugreport", "--kubeconfig", file, "--file", "-")
	if code != 0 || !strings.HasPrefix(out, "\x1f\x8b") {
		t.Errorf("through a pipe: code %d, %.20q", code, out)
	}
	noVersion := kubeconfigOf(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	if code, out, errOut := call(t, "", "bugreport", "--kubeconfig", noVersion, "--file", "-"); code != 0 || !strings.HasPrefix(out, "\x1f\x8b") {
		t.Errorf("without any right: code %d, %q", code, errOut)
	}
	if code, _, errOut := call(t, "", "bugreport", "--kubeconfig", kubeconfigTo(t, "http://127.0.0.1:1")); code != cmdline.ExitError || !strings.Contains(errOut, "cannot be reached") {
		t.Errorf("no cluster: code %d, %q", code, errOut)
	}
}
