package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// churnWave is how many pods come and go at once, while the agent is updated.
	churnWave = 3
	// churnAnUpdate is how many pods come and go in each update, of those in E2E_SIDECAR_CHURN.
	churnAnUpdate = 6
	updatesAtMost = 5
)

// An update of the agent runs the new one before it ends the old one. Whatever pods come and go meanwhile, each gets its proxy, nothing stays of
// those that are gone, and the proxies that run lose no connection and keep each of their files.
//
// Not parallel: it updates the agent.
//
//e2e:rounds nri
func TestProxyAgentUpdateUnderChurn(t *testing.T) {
	m := newManaged(t)
	loaded := []*busy{m.startBusy(t, "busy-0"), m.startBusy(t, "busy-1")}
	before := map[string]fileState{}
	for _, b := range loaded {
		maps.Copy(before, filesBelow(t, m.home(t, b.pod)))
	}
	n := amount(t, "E2E_SIDECAR_CHURN", sidecarChurn)
	updates, uids := min((n+churnAnUpdate-1)/churnAnUpdate, updatesAtMost), []types.UID{}
	for i := range updates {
		began, old := time.Now(), m.agent(t)
		m.space.patchDaemonSet(t, map[string]any{"metadata": map[string]any{"annotations": map[string]any{"rolled": time.Now().String()}}})
		for made, updated := 0, false; !updated || made < n/updates; made += churnWave {
			uids = append(uids, m.churn(t, fmt.Sprintf("brief-%d-%d", i, made))...)
			now, err := m.findAgent(t.Context())
			updated = err == nil && now.UID != old.UID
		}
		for _, b := range loaded {
			b.held.say(t, fmt.Sprint("after update ", i))
			b.wantNoneFailed(t, fmt.Sprint("after update ", i))
		}
		t.Logf("update %d took %s; %d pods came and went so far", i, time.Since(began).Round(time.Millisecond), len(uids))
	}

	after := map[string]fileState{}
	for _, b := range loaded {
		m.awaitSidecar(t, b.pod.Name, func(status map[string]any) error {
			return errors.Join(isServing(0)(status), equal(status["restarts"], 0))
		})
		maps.Copy(after, filesBelow(t, m.home(t, b.pod)))
	}
	for path, was := range before {
		if now := after[path]; now != was {
			t.Errorf("%s was %+v, is %+v", path, was, now)
		}
	}
	if len(after) != len(before) {
		t.Errorf("the proxies had %d files, have %d", len(before), len(after))
	}
	for _, b := range loaded {
		b.awaitEnough(t)
		sent := b.stop(t)
		b.wantKept(t, sent)
		t.Logf("%s: %d inbound and %d outbound connections, %d updates", b.pod.Name, b.in.asked, sent.OK, updates)
		uids = append(uids, b.pod.UID)
		m.deleteWithin(t.Context(), t, b.pod.Name, 0)
	}
	m.wantNothingLeft(t, uids)
}

// churn makes pods, waits until all but one of them are ready, and deletes all.
func (m managed) churn(t *testing.T, prefix string) (uids []types.UID) {
	t.Helper()
	var wave []*corev1.Pod
	for i := range churnWave {
		wave = append(wave, m.create(t, plainPod(fmt.Sprintf("%s-%d", prefix, i))))
	}
	for i, pod := range wave {
		if i > 0 {
			m.await(t, pod.Name, isReadyNow)
		}
		uids = append(uids, pod.UID)
		m.deleteWithin(t.Context(), t, pod.Name, 0)
	}
	return uids
}

// fileState changes when a file is replaced or written.
type fileState struct {
	inode    uint64
	size     int64
	modified time.Time
}

// filesBelow returns all files and directories of a directory.
func filesBelow(t *testing.T, dir string) map[string]fileState {
	t.Helper()
	out := map[string]fileState{}
	must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		out[path] = fileState{info.Sys().(*syscall.Stat_t).Ino, info.Size(), info.ModTime()}
		return nil
	}))
	if len(out) == 0 {
		t.Errorf("%s: %v", dir, os.ErrNotExist)
	}
	return out
}
