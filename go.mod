module github.com/go-zklock/zklock

go 1.25
