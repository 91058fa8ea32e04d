package state

import (
	"path/filepath"
	"testing"
)

func TestLockIsHeldOnceAtATime(t *testing.T) {
	file := filepath.Join(t.TempDir(), "dir", "lock")
	unlock, err := Lock(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(file); err == nil {
		t.Error("locked twice")
	}
	unlock()
	unlock, err = Lock(file)
	if err != nil {
		t.Fatalf("after unlock: %v", err)
	}
	unlock()
}
