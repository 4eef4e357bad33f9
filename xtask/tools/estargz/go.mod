module tarpon/xtask/tools/estargz

go 1.19

require github.com/containerd/stargz-snapshotter/estargz v0.15.1

require (
	github.com/klauspost/compress v1.17.2 // indirect
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/vbatts/tar-split v0.11.5 // indirect
	golang.org/x/sync v0.4.0 // indirect
)
