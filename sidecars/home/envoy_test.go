package home

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// What an Envoy that ended while it started has left in the memory of its line is gone for the next one, whatever the memory's version; the running one
// keeps its own.
func TestRestoreMemory_successorEndedWhileStarting_isAsBefore(t *testing.T) {
	h, o := Home{Path: t.TempDir()}, Owner{int64(os.Getuid()), int64(os.Getgid())}
	memory := filepath.Join(h.Shm(), memoryName)
	if err := errors.Join(h.Prepare(o), KeepMemory(h), RestoreMemory(h, o)); err != nil {
		t.Fatalf("without memory: %v", err)
	}
	if err := errors.Join(os.WriteFile(memory, []byte("all started"), 0o600), KeepMemory(h)); err != nil {
		t.Fatal(err)
	}
	running, err := os.OpenFile(memory, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close() //nolint:errcheck // a test
	if _, err := running.WriteAt([]byte("one"), 0); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := RestoreMemory(h, o); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(memory); err != nil || string(got) != "all started" {
		t.Errorf("the next one finds %q, error %v", got, err)
	}
	var its [11]byte
	if _, err := running.ReadAt(its[:], 0); err != nil || string(its[:]) != "one started" {
		t.Errorf("the running one has %q, error %v", its, err)
	}
}

// The proxy can write to the directory of its memory. What it puts there instead is neither followed nor read at length.
func TestKeepMemory_hostileProxy_isRefused(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"a link":       func(path string) error { return os.Symlink("/etc/hostname", path) },
		"a pipe":       func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a directory":  func(path string) error { return os.Mkdir(path, 0o700) },
		"a large file": func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<40)) },
	} {
		t.Run(name, func(t *testing.T) {
			h, o := Home{Path: t.TempDir()}, Owner{int64(os.Getuid()), int64(os.Getgid())}
			if err := errors.Join(h.Prepare(o), put(filepath.Join(h.Shm(), memoryName))); err != nil {
				t.Fatal(err)
			}
			if err := KeepMemory(h); err == nil {
				t.Error("it is kept")
			}
			if err := errors.Join(os.WriteFile(filepath.Join(h.Path, memoryCopy), []byte("kept"), 0o600), os.Symlink("/etc/hostname", filepath.Join(h.Shm(), memoryName+".next"))); err != nil {
				t.Fatal(err)
			}
			err := RestoreMemory(h, o)
			if got, errRead := os.ReadFile(filepath.Join(h.Shm(), memoryName)); name != "a directory" && (err != nil || errRead != nil || string(got) != "kept") {
				t.Errorf("restored is %q, errors %v, %v", got, err, errRead)
			}
		})
	}
}
