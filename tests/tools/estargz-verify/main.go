// Opens an eStargz blob with the library of stargz-snapshotter, compares the digest of its table of contents and reads every
// file through the chunk digests, and then compares the whole with the file's own digest.
//
//	estargz-verify BLOB sha256:TOC-DIGEST
package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/containerd/stargz-snapshotter/estargz"
	digest "github.com/opencontainers/go-digest"
)

func main() {
	if len(os.Args) != 3 {
		fail(fmt.Errorf("usage: estargz-verify BLOB TOC-DIGEST"))
	}
	files, chunks, err := verify(os.Args[1], os.Args[2])
	if err != nil {
		fail(err)
	}
	fmt.Printf("verified %d files in %d chunks\n", files, chunks)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func verify(path, expected string) (files, chunks int, err error) {
	blob, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer blob.Close()
	info, err := blob.Stat()
	if err != nil {
		return 0, 0, err
	}
	reader, err := estargz.Open(io.NewSectionReader(blob, 0, info.Size()))
	if err != nil {
		return 0, 0, fmt.Errorf("opening: %w", err)
	}
	verifier, err := reader.VerifyTOC(digest.Digest(expected))
	if err != nil {
		return 0, 0, fmt.Errorf("the table of contents: %w", err)
	}
	root, ok := reader.Lookup("")
	if !ok {
		return 0, 0, fmt.Errorf("no root")
	}
	var walk func(path string, entry *estargz.TOCEntry) error
	walk = func(path string, entry *estargz.TOCEntry) error {
		if entry.Type == "reg" && entry.Size > 0 {
			// The library knows chunks by the name of the file itself, not by those of its hard links.
			count, err := verifyFile(reader, verifier, entry.Name, entry)
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			files++
			chunks += count
		}
		var failed error
		entry.ForeachChild(func(name string, child *estargz.TOCEntry) bool {
			failed = walk(strings.TrimPrefix(path+"/"+name, "/"), child)
			return failed == nil
		})
		return failed
	}
	return files, chunks, walk("", root)
}

func verifyFile(reader *estargz.Reader, verifier estargz.TOCEntryVerifier, path string, entry *estargz.TOCEntry) (int, error) {
	content, err := reader.OpenFile(path)
	if err != nil {
		return 0, err
	}
	if content.Size() != entry.Size {
		return 0, fmt.Errorf("%d bytes instead of %d", content.Size(), entry.Size)
	}
	chunks := 0
	for place := int64(0); place < entry.Size; chunks++ {
		chunk, ok := reader.ChunkEntryForOffset(path, place)
		if !ok || chunk.ChunkOffset != place {
			return 0, fmt.Errorf("no chunk at %d", place)
		}
		verified, err := verifier.Verifier(chunk)
		if err != nil {
			return 0, err
		}
		if _, err := io.Copy(verified, io.NewSectionReader(content, place, chunk.ChunkSize)); err != nil {
			return 0, err
		}
		if !verified.Verified() {
			return 0, fmt.Errorf("the chunk at %d has another digest", place)
		}
		place += chunk.ChunkSize
	}
	whole := digest.Digest(entry.Digest).Verifier()
	if _, err := io.Copy(whole, io.NewSectionReader(content, 0, entry.Size)); err != nil {
		return 0, err
	}
	if !whole.Verified() {
		return 0, fmt.Errorf("the file has another digest")
	}
	return chunks, nil
}
