package container

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/sidecar"
)

// endWith has the next container that runs print something and end.
func (f *fakeCRI) endWith(ctx context.Context, log string) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		f.mu.Lock()
		for id, state := range f.states {
			if state != criv1.ContainerState_CONTAINER_RUNNING {
				continue
			}
			r := f.made[id]
			path := filepath.Join(r.GetSandboxConfig().GetLogDirectory(), r.GetConfig().GetLogPath())
			if log == "" || os.WriteFile(path, []byte(log), 0o600) == nil {
				f.states[id] = criv1.ContainerState_CONTAINER_EXITED
			}
			f.mu.Unlock()
			return
		}
		f.mu.Unlock()
		<-tick.C
	}
}

func TestOutput_program_returnsWhatItPrints(t *testing.T) {
	const prefix = "2026-11-22T08:00:00.123456789Z stderr "
	for name, c := range map[string]struct {
		log, want, wantErr string
		well               bool
	}{
		"it answers":                       {log: prefix + "F 11.104\n", well: true, want: "11.104"},
		"it does not end its line":         {log: prefix + "P 11.104\n", well: true, want: "11.104"},
		"it says more":                     {log: prefix + "F a\n" + prefix + "F b c\n", well: true, want: "a\nb c"},
		"it says nothing":                  {log: "\n", well: true},
		"it fails":                         {log: prefix + "F no such option\n", wantErr: `exit code 3 (Error): "no such option"`},
		"its log is gone with the kubelet": {well: true, wantErr: "read what the container has printed"},
	} {
		t.Run(name, func(t *testing.T) {
			f, r := newFake(t, "containerd")
			f.well = c.well
			go f.endWith(t.Context(), c.log)
			got, err := r.Output(t.Context(), f.proxy())
			if got != c.want && c.wantErr == "" || (err == nil) != (c.wantErr == "") || err != nil && !strings.Contains(err.Error(), c.wantErr) {
				t.Errorf("%q, %v; want %q, %s", got, err, c.want, c.wantErr)
			}
			if len(f.states) != 0 {
				t.Errorf("containers %v are left", f.states)
			}
		})
	}
}

// A probe's container is none of a proxy's: nobody upgrades it or takes it for one that serves. One that an agent has left is removed.
func TestOutput_probe_isNoProxy(t *testing.T) {
	f, r := newFake(t, "containerd")
	ctx, cancel := context.WithCancel(t.Context())
	f.errors["start"] = nil
	left := f.proxy()
	left.Epoch = 9
	go func() {
		defer cancel() // the agent is killed while the program runs
		f.awaitRunning()
	}()
	if _, err := r.Output(ctx, left); err == nil {
		t.Fatal("a program that does not end has an answer")
	}
	f.mu.Lock()
	config := f.made["c9"].GetConfig()
	f.states["c9"] = criv1.ContainerState_CONTAINER_RUNNING // as if it had been killed before it could remove it
	f.mu.Unlock()
	if config.GetMetadata().GetName() == sidecar.ContainerName || config.GetLabels()[labelPodUID] == "" {
		t.Errorf("it is called %q, labels %v", config.GetMetadata().GetName(), config.GetLabels())
	}
	if all, err := r.List(t.Context(), ""); err != nil || len(all) != 0 {
		t.Errorf("listed: %+v, %v", all, err)
	}
	f.errors["create"] = context.DeadlineExceeded
	if _, err := r.Output(t.Context(), f.proxy()); err == nil || !slices.Contains(f.removed, "c9") {
		t.Errorf("%v; removed: %v", err, f.removed)
	}
}

func (f *fakeCRI) awaitRunning() {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		f.mu.Lock()
		for _, state := range f.states {
			if state == criv1.ContainerState_CONTAINER_RUNNING {
				f.mu.Unlock()
				return
			}
		}
		f.mu.Unlock()
	}
}

func TestLabels_hotRestart_isKept(t *testing.T) {
	in := sidecar.Labels{PodUID: "u", Profile: "envoy", HotRestart: &sidecar.HotRestart{Line: 2, Epoch: 3, Version: "11.104"}}
	if got := labelsOf(labels(in, "")); got.HotRestart == nil || *got.HotRestart != *in.HotRestart {
		t.Errorf("%+v", got)
	}
	if got := labelsOf(labels(sidecar.Labels{PodUID: "u"}, "")); got.HotRestart != nil {
		t.Errorf("a proxy without: %+v", got)
	}
}
